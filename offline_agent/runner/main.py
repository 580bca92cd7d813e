"""The frame of every command: exit statuses, run directory, tracking, progress, closing summary."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offline_agent import crash_notes as running
from offline_agent.config import loading as configuration
from offline_agent.config.build_prefs import RunConfig
from offline_agent.errors import ConfigError, OfflineAgentError
from offline_agent.runner.arguments import again, parse, usage
from offline_agent.runner.opening import open_run, refuse
from offline_agent.runner.pipeline import DONE, FAILED, C, Command, Facts, P, Session
from offline_agent.runner.progress import Progress
from offline_agent.runner.signals import Stopped, signals
from offline_agent.runner.supervisor import supervised
from offline_agent.runner.terminal import say, show

if TYPE_CHECKING:
    from offline_agent.store.run_directory import RunDirectory


def main(command: Command[C, P], argv: Sequence[str] | None = None) -> int:
    """Carry out a command line and return its exit status: 0 done, 1 failed while running, 2 wrong request.

    Args:
        command: The pipeline.
        argv: Arguments without the program's name; None = `sys.argv`'s, carried out in a child of this process
            (`_supervisor`).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--help" in arguments or "-h" in arguments:
        show(usage(command.name, command.about, command.config, command.spread is not None))
        return DONE
    if argv is None:
        return supervised(command.name, lambda: _main(command, arguments))
    return _main(command, arguments)


def _main(command: Command[C, P], arguments: list[str]) -> int:
    try:
        with signals():
            work = _set_up(command, arguments)
    except OfflineAgentError as error:
        return _failed(command, error)
    except Stopped as stop:
        say(f"{command.name}: stopped by {stop}; nothing was written")
        return FAILED
    return work()


def _failed(command: Command[C, P], error: OfflineAgentError) -> int:
    """Say why a command ended, and return its exit status."""
    if isinstance(error, ConfigError):
        return refuse(command, error)
    say(f"{command.name}: {error}")
    return FAILED


def _set_up(command: Command[C, P], arguments: list[str]) -> Callable[[], int]:
    """Read the request, prepare what it asks for, and return the work; nothing is written.

    Raises:
        OfflineAgentError: The request is wrong, or cannot be prepared.
    """
    asked = parse(arguments)
    config = configuration.load(command.config, asked.file, asked.overrides)
    if os.environ.get("OFFLINE_AGENT_INSIDE_RAY"):  # carried out on a node of the cluster already
        config = config.model_copy(update={"launcher": "local"})
    if asked.print_config:
        show(configuration.to_yaml(config).rstrip())
        return lambda: DONE
    if asked.plan or config.plan.expect:
        _check_plan(config, asked.plan)
    apart = None if asked.plan else _apart(command, config, asked.part, arguments)
    prepared, facts = command.prepare(config)
    if asked.plan:
        del prepared  # a model is loaded by the probe, not twice
        return lambda: _plan(command, config)
    if apart is not None:
        return lambda: apart(command, config, prepared, facts)
    return lambda: _carry_out(command, config, prepared, facts, arguments, asked.part)


def _apart(command: Command[C, P], config: C, part: str | None, arguments: list[str]) -> Callable[..., int] | None:
    """Return what carries the command out in place of this process alone: jobs, or the first of several processes.

    Raises:
        ConfigError: An option that goes with something else, or there is no Slurm, or no Ray.
    """
    from offline_agent.launch import torchrun as _processes

    if _processes.count() > 1:
        _processes.check(command.name, config, _processes.count())
        from offline_agent.training.sharding import join

        join()
    if _processes.rank():
        return _processes.follow
    if config.launcher != "slurm" and part == "--submit":
        raise ConfigError(f"--submit: got launcher={config.launcher}; it goes with launcher=slurm")
    if command.spread is None and part in ("--merge", "--shard"):
        raise ConfigError(f"{part}: {command.name} is not cut into shards; leave it out")
    if config.launcher == "ray" and part is None:
        from offline_agent.launch.ray import command as _ray_command

        return _ray_command.launcher(command, config, arguments)
    if config.launcher != "slurm" or part in ("--merge", "--shard"):
        return None
    from offline_agent.launch.slurm import launcher as _slurm

    return _slurm.launcher(command, config, wait=part is None)


def _check_plan(config: RunConfig, planned: bool) -> None:
    from offline_agent.planning import plan as _plan

    _plan.check(config, planned)


def _plan(command: Command[C, P], config: C) -> int:
    """Print what the run is expected to cost; nothing is left on the disk."""
    from offline_agent.planning import plan as _plan

    try:
        with signals():
            show(_plan.plan(command.name, config, say))
    except OfflineAgentError as error:
        return _failed(command, error)
    except Stopped as stop:
        say(f"{command.name}: stopped by {stop}; nothing was written")
        return FAILED
    return DONE


def _carry_out(
    command: Command[C, P], config: C, prepared: P, facts: Facts, arguments: list[str], part: str | None
) -> int:
    try:
        config, run = open_run(command, config, facts)
    except OfflineAgentError as error:
        return _failed(command, error)
    line = again(command.name, arguments, run.path)
    if running.notes is not None:
        running.notes.again = line
    try:
        with signals(), run:
            _work(command, config, prepared, facts, run, part)
    except OfflineAgentError as error:
        say(f"{command.name}: {error}")  # a ConfigError too: something was written by now
        return FAILED
    except Stopped as stop:
        say(f"{command.name}: stopped by {stop}. To go on: {line}")
        return FAILED
    except Exception:
        traceback.print_exc()
        say(f"{command.name}: a fault of the program (above). What was done is in {run.path}; to go on: {line}")
        return FAILED
    return DONE


def _work(command: Command[C, P], config: C, prepared: P, facts: Facts, run: RunDirectory, part: str | None) -> None:
    from offline_agent.tracking.client import open_tracker

    progress = Progress(command.name)
    tracker = open_tracker(
        config.tracking.uri,
        config.tracking.experiment,
        f"{command.name} {run.path.name}",
        run_id=run.manifest["run_id"],
        params=config.resolved(),
        tags={"pipeline": command.name, "run_dir": str(run.path.resolve()), **_commit(run), **facts.tags},
        say=progress.say,
        parent=config.tracking.parent,
        run_dir=run.path,
    )
    try:
        expectation = _expectation(command, config, run, progress.say)
        session = Session(config, run, tracker, progress, progress.say)
        summary = _run(command, prepared, session, part)
        progress.close()
        if expectation is not None:
            summary = {**summary, "expected": expectation.against(summary)}
        run.write_summary(summary)
        run.finish()
        tracker.metrics(dict(_numbers(summary)))
        for name in ("manifest.json", "summary.json"):
            tracker.artifact(run.path / name)
        show("shard done" if part == "--shard" else command.show(summary, run.path))  # before tracking is waited for
        if expectation is not None:
            show(expectation.show(summary["expected"]))
    except BaseException as error:
        progress.close()
        tracker.close("KILLED" if isinstance(error, Stopped) else "FAILED")
        raise
    tracker.close()


def _run(command: Command[C, P], prepared: P, session: Session[C], part: str | None) -> Mapping[str, Any]:
    if command.spread is None or part not in ("--shard", "--merge"):
        return command.run(prepared, session)
    if part == "--shard":
        return command.spread.share(prepared, session)
    from offline_agent.launch.shards import merge

    made = merge(command.spread, prepared, session)
    return {**command.run(prepared, session), "shards": made}


def _expectation(command: Command[C, P], config: C, run: RunDirectory, say: Callable[[str], None]) -> Any:
    """Return what the run is expected to cost, where it was begun with a plan; else None."""
    from offline_agent.planning import plan as _plan

    if config.plan.expect or (run.path / _plan.KEPT).is_file():
        return _plan.Expectation(command.name, config, run, say)
    return None


def _commit(run: RunDirectory) -> dict[str, str]:
    commit = run.manifest.get("git_commit")
    return {"git_commit": commit} if commit else {}


def _numbers(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in a summary as metrics, nested names joined by slashes."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{name}", value
