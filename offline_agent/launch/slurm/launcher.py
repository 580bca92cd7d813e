"""Launcher of `launcher=slurm`: runs as Slurm jobs, submitted, waited for and resumed.

A search or an evaluation is an array of shards and a merge that depends on them. Training is one job. `iterate` is a
controller, in this process or (with --submit) in a small job, that submits its stages in turn: the configuration of a
stage depends on the results of the stage before, so they cannot all be submitted beforehand.

No process of the launcher is needed while the jobs run. The same command finds the jobs that wait or run, and submits
what is neither done nor under way.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from offline_agent.config.build_prefs import RunConfig, SlurmSection
from offline_agent.config.iterate import IterateConfig
from offline_agent.config.training import TrainableConfig
from offline_agent.errors import ConfigError, OfflineAgentError
from offline_agent.launch import torchrun
from offline_agent.launch.shards import FOLDER, SLURM_FOLDER, cut, listed, manifest_of, resume_command, shard_config
from offline_agent.launch.slurm import batch as slurm
from offline_agent.launch.slurm.batch import BatchJob
from offline_agent.launch.slurm.jobs import RunStatus, job_name, look
from offline_agent.launch.stages import show_summary, write_config
from offline_agent.runner import signals, terminal
from offline_agent.runner.pipeline import DONE, FAILED, Command, Facts, open_run, refuse
from offline_agent.runner.terminal import Progress
from offline_agent.store.provenance import python_path

_TOLD = 3  # jobs of which is said what became of them


def launcher(command: Command[Any, Any], config: RunConfig, wait: bool) -> Callable[..., int] | None:
    """Return the function that submits the command; None where it runs here and only its stages are jobs.

    Args:
        command: The command.
        config: Its configuration.
        wait: Wait for the jobs.

    Raises:
        ConfigError: This machine has no Slurm.
    """
    slurm.check()
    if isinstance(config, TrainableConfig) and (together := _processes_of(config)) > 1:
        torchrun.check(command.name, config.model_copy(update={"run_dir": config.run_dir or "new"}), together)
    if isinstance(config, IterateConfig) and wait:
        return None
    return partial(_launch, wait=wait)


def _launch(command: Command[Any, Any], config: Any, prepared: Any, facts: Facts, *, wait: bool) -> int:
    say = terminal.say
    try:
        with signals.signals():
            view, path = _submitted(command, config, prepared, facts)
            if not wait:
                terminal.show(_ids(view))
                return DONE
            return _wait(command, config, path, say)
    except ConfigError as error:
        return refuse(command, error)
    except OfflineAgentError as error:
        say(f"{command.name}: {error}")
        return FAILED
    except signals.Stopped as stop:
        say(
            f"{command.name}: stopped waiting by {stop}; the jobs go on. The same command waits for them again, and "
            "`scancel --name=NAME` ends those that squeue shows"
        )
        return FAILED


# -- submission ----------------------------------------------------------------------------------------------------


def _submitted(command: Command[Any, Any], config: Any, prepared: Any, facts: Facts) -> tuple[RunStatus, Path]:
    """Submit what is neither done nor under way; return the status and the run directory as it was named."""
    if config.run_dir is not None:
        path = Path(config.run_dir)
        if (manifest_of(path) or {}).get("command") == command.name:
            view = look(path.resolve(), command.name)
            last = view.merge or view.job
            if last is not None and last.active:  # that job has, or will take, the lock of the run directory
                terminal.say(f"{command.name}: the jobs of {path} are under way")
                return view, path
    config, run = open_run(command, config, facts)
    with run:
        here = _Submitter(command, config, run.path.resolve())
        if command.spread is not None:
            here.array(command.spread.tasks(prepared))
        else:
            here.single()
    return look(here.run_dir, command.name), run.path


@dataclass
class _Submitter:
    """Submits the jobs of one run, under its lock."""

    command: Command[Any, Any]
    config: Any
    run_dir: Path

    def __post_init__(self) -> None:
        self.secrets: dict[str, str] = {}
        self.module = f"offline_agent.pipelines.{self.command.name}"
        self.python = self.config.slurm.python or sys.executable
        self.request = self.config.slurm.model_copy(update={"nodes": 1})

    def array(self, tasks: int) -> None:
        """Submit the shards that are neither done nor under way, and the merge that depends on them."""
        shards = cut(self.run_dir, tasks, self.config.slurm.shards)
        if len(shards) != min(self.config.slurm.shards, tasks):
            self._say(f"the run was cut into {len(shards)} shards before, and stays so")
        merge = self.run_dir / SLURM_FOLDER / "merge.yaml"
        standings = dict((shard.number, standing) for shard, standing in look(self.run_dir, self.command.name).shards)
        under_way = [standing.job for standing in standings.values() if standing.active and standing.job]
        left = [shard for shard in shards if standings[shard.number].word not in ("done", "running", "pending")]
        self._write(merge, self._absolute(), ["--merge"])
        for shard in left:
            self._write(shard.file, shard_config(self.config, shard, tasks), ["--shard"])
        if left:
            numbers = tuple(shard.number for shard in left)
            file = f"{shlex.quote(str(self.run_dir / FOLDER))}/$(printf %04d $SLURM_ARRAY_TASK_ID).yaml"
            line = f"{shlex.quote(self.python)} -m {self.module} --shard --config {file}"
            under_way.append(self._submit("shards", line, self.request, numbers))
            again = [n for n in numbers if standings[n].word in ("failed", "lost")]
            if again:
                self._say(f"submitting again what failed or was lost: {listed(again)}")
        line = shlex.join([self.python, "-m", self.module, "--merge", "--config", str(merge)])
        self._submit("merge", line, self.request, after=tuple(under_way))

    def single(self) -> None:
        """Submit the run in one piece: a training job on its nodes, or the controller of a loop."""
        file, settings = self.run_dir / SLURM_FOLDER / "job.yaml", self.config.slurm
        controller = isinstance(self.config, IterateConfig)
        config = self._absolute() if controller else self._absolute().model_copy(update={"launcher": "local"})
        self._write(file, config, [])
        request = self.request.model_copy(update={"gpus": 0}) if controller else self.request
        line = shlex.join([self.python, "-m", self.module, "--config", str(file)])
        if isinstance(self.config, TrainableConfig):
            names = {name: getattr(settings, f"train_{name}") for name in ("cpus", "memory", "gpus")}
            request = settings.model_copy(update={name: size for name, size in names.items() if size is not None})
            line = torchrun.command_line(
                self.module, ["--config", str(file)], self.python, request.nodes,
                _processes_of(self.config) // request.nodes, request.gpus, settings.sharded,
            )  # fmt: skip
        self._submit("job", line, request)

    def _absolute(self) -> Any:
        return self.config.model_copy(update={"run_dir": str(self.run_dir)})

    def _write(self, file: Path, config: RunConfig, options: Sequence[str]) -> None:
        self.secrets |= write_config(file, config, self.command.name, [*options, "--config", str(file)])

    def _submit(
        self, kind: str, line: str, request: SlurmSection, numbers: tuple[int, ...] = (), after: tuple[str, ...] = ()
    ) -> str:
        name, most = job_name(self.run_dir, self.command.name, kind), self.config.slurm.at_once if numbers else None
        job = BatchJob(name, line, self.run_dir / SLURM_FOLDER, request, numbers, most, after)
        found = slurm.submit(job, {**self.secrets, "PYTHONPATH": python_path()})
        what = f"{len(numbers)} shards" if numbers else kind
        self._say(f"submitted {what} as job {found} ({name})")
        return found

    def _say(self, text: str) -> None:
        terminal.say(f"{self.command.name}: {text}")


def _processes_of(config: TrainableConfig) -> int:
    """Return the number of processes that train together, over all nodes."""
    asked = config.slurm
    gpus = asked.gpus if asked.train_gpus is None else asked.train_gpus
    return asked.nodes * (asked.processes or gpus or 1)


def _ids(view: RunStatus) -> str:
    """Return the ids of jobs that wait or run, a line for each kind."""
    lines = []
    arrays = {standing.job.partition("_")[0] for _, standing in view.shards if standing.active and standing.job}
    if arrays:
        lines.append(f"shards {' '.join(sorted(arrays, key=int))}")
    for kind, standing in (("merge", view.merge), ("job", view.job)):
        if standing is not None and standing.active and standing.job:
            lines.append(f"{kind} {standing.job}")
    return "\n".join(lines)


# -- waiting -------------------------------------------------------------------------------------------------------


def _wait(command: Command[Any, Any], config: Any, path: Path, say: Callable[[str], None]) -> int:
    """Wait until no job is under way; show the summary, or the status of the jobs."""
    run_dir, progress = path.resolve(), Progress(command.name)
    progress.start(None, "waiting for jobs")
    told = False
    try:
        while True:
            view = look(run_dir, command.name, patient=True)
            if view.unheard is not None and not told:  # the controller may restart; the jobs go on
                progress.say(f"{command.name}: {view.unheard}; waiting on")
            told = view.unheard is not None
            counts = {f"shards_{word}": count for word, count in view.count().items()}
            progress.update(sum(standing.finished for _, standing in view.shards), **counts)
            if not told and not view.active:
                break
            time.sleep(config.slurm.poll_seconds)
    finally:
        progress.close()
    last = view.merge or view.job
    if last is None or last.word != "done":
        say(f"{command.name}: {told_of(view, run_dir / SLURM_FOLDER)}")
        say(f"To go on, with what is not done alone: {resume_command(run_dir, command.name)}")
        return FAILED
    show_summary(command, path)
    return DONE


def told_of(view: RunStatus, logs: Path) -> str:
    """Return the status of the jobs of a run that is not done, and where their logs are."""
    wrong = [(f"shard {shard.number}", one) for shard, one in view.shards if one.word != "done"]
    lines = []
    if wrong:
        numbers = [shard.number for shard, one in view.shards if one.word != "done"]
        lines.append(f"{len(wrong)} of {len(view.shards)} shards are not done: {listed(numbers)}")
    else:
        wrong = [(kind, one) for kind, one in (("merge", view.merge), ("job", view.job)) if one is not None]
    lines += [f"  {name} {one.word}: {one.why or 'nothing is known of it'}" for name, one in wrong[:_TOLD]]
    return "\n".join([*lines, f"  logs: {logs}/*.log"])
