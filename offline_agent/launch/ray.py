"""Launcher of `launcher=ray`: shards of a search or an evaluation as tasks of a Ray cluster.

A task of Ray's runs a command line on a node, in a process of its own, as a Slurm job does. All that it does is in a
run directory that every node sees: a task that Ray starts again, after a node or a process died, resumes there. Ray
carries the command line there and its exit status back.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from offline_agent.config.build_prefs import RunConfig
from offline_agent.config.iterate import IterateConfig
from offline_agent.config.launch import RaySection
from offline_agent.errors import ConfigError
from offline_agent.launch import ray_cluster
from offline_agent.launch.ray_cluster import ClusterError, connected
from offline_agent.launch.shards import cut, finished, is_whole, listed, manifest_of, shard_config
from offline_agent.launch.stages import bound_to, end, write_config
from offline_agent.runner.pipeline import Command, Session
from offline_agent.store.provenance import python_path

_TICK = 0.2  # seconds
_LOOK = 2.0  # seconds between two looks at run directories and logs, which may be on a slow file system
_PATIENCE = 60.0  # seconds that stopped tasks have to end
_NOT_PASSED = ("RAY_", "CUDA_", "SLURM_", "HOSTNAME", "OMP_", "PWD", "TMPDIR")


class Job(NamedTuple):
    """A command line for a node.

    Attributes:
        name: For messages.
        arguments: What follows `python`.
        run_dir: The run directory that it writes.
        log: The file to which its messages are appended.
        secrets: Environment variables that its configuration file names.
    """

    name: str
    arguments: Sequence[str]
    run_dir: Path
    log: Path
    secrets: Mapping[str, str]


def check(command: Command[Any, Any], config: RunConfig) -> None:
    """Raise ConfigError where the command cannot be spread, Ray is not installed, or nothing answers at its address."""
    if command.spread is None and not isinstance(config, IterateConfig):
        raise ConfigError(
            f"launcher: got ray, allowed for {command.name}: local, slurm. Ray spreads searches and evaluations; "
            "`ray job submit` gives a training to a node of its cluster"
        )
    ray_cluster.check(config.ray.address)


def run_shards(tasks: int, session: Session[Any]) -> None:
    """Run the shards of a run that are not done on the cluster; the first session decides how the tasks are cut.

    Args:
        tasks: Number of tasks of the run.
        session: The run.

    Raises:
        ClusterError: The cluster refused, or a shard failed.
    """
    config, run_dir, name = session.config, session.run.path.resolve(), session.run.manifest["command"]
    asked = config.ray
    with connected(asked.address, (asked.workers or 1) * asked.cpus):
        shards = cut(run_dir, tasks, asked.workers or max(1, ray_cluster.fitting(asked.cpus, asked.gpus)))
        jobs = []
        for shard in shards:
            if not is_whole(shard.path):
                options = ("--shard", "--config", str(shard.file))
                secrets = write_config(shard.file, shard_config(config, shard, tasks), name, options)
                arguments = ("-m", f"offline_agent.pipelines.{name}", *options)
                jobs.append(Job(str(shard.number), arguments, shard.path, shard.path.with_suffix(".log"), secrets))
        session.progress.start(tasks if name == "build_prefs" else None, "shards at work")
        session.say(f"{name}: {len(jobs)} of {len(shards)} shards are left")

        def tick() -> None:
            session.progress.update(sum(finished(shard.path, name) for shard in shards))

        failed = _carry_out(jobs, asked, tick, session.say)
    if failed:
        number, why = next(iter(failed.items()))
        raise ClusterError(
            f"{len(failed)} of {len(shards)} shards failed: {listed(list(map(int, failed)))}; the first: {why}. All of "
            f"it: {shards[int(number)].path.with_suffix('.log')}. The same command goes on with those alone"
        )


def _carry_out(
    jobs: Sequence[Job], asked: RaySection, tick: Callable[[], None], say: Callable[[str], None]
) -> dict[str, str]:
    """Carry out jobs on the cluster; return by name why those failed that did.

    Args:
        jobs: The jobs; at most `ray.workers` of them at a time.
        asked: The section `ray` of the configuration.
        tick: Called every two seconds.
        say: Prints a line for the user.
    """
    import ray

    room = asked.cpus, asked.gpus
    if not ray_cluster.has_room(*room):
        if asked.address is None:
            raise ClusterError(ray_cluster.no_room(*room))
        say(f"{ray_cluster.no_room(*room)}; waiting, as the cluster may grow")
    task = ray.remote(_run).options(
        num_cpus=room[0], num_gpus=room[1], scheduling_strategy="SPREAD", max_retries=asked.deaths,
        retry_exceptions=[ChildProcessError],
    )  # fmt: skip
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED)}
    waiting, calls, failed = deque(jobs), dict[Any, Job](), dict[str, str]()
    try:
        while waiting or calls:
            while waiting and len(calls) < (asked.workers or len(jobs)):
                job = waiting.popleft()
                calls[task.remote(job, os.getcwd(), variables)] = job
            for call in _ended(calls, 1, _LOOK):
                job = calls.pop(call)
                try:
                    if status := ray.get(call):
                        failed[job.name] = f"it ended with status {status}"
                except ray.exceptions.RayError as error:
                    failed[job.name] = str(error).strip().splitlines()[-1][:300]
            tick()
    except BaseException:
        for call in calls:
            ray.cancel(call)
        _ended(calls, len(calls), _PATIENCE)
        raise
    return failed


def _ended(calls: Collection[Any], count: int, seconds: float) -> list[Any]:
    """Return those of the calls that ended, when so many of them did or the time is up."""
    import ray

    try:
        return ray.wait(list(calls), num_returns=count, timeout=seconds)[0]
    except SystemError as error:  # what a signal's handler raises inside Ray's compiled code
        raise error.__cause__ or error from None


def _run(job: Job, folder: str, variables: Mapping[str, str]) -> int:
    """Run a job in a worker of Ray's, and return its exit status.

    Args:
        job: The job.
        folder: The driver's working directory.
        variables: The driver's environment; what is set here takes precedence.

    Raises:
        ChildProcessError: Its process ended and its run directory does not say why: Ray starts the task again.
    """
    paths = python_path(variables.get("PYTHONPATH"))
    with open(job.log, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, *job.arguments], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=log, env={**variables, **os.environ, **job.secrets, "PYTHONPATH": paths},
            start_new_session=True, preexec_fn=bound_to(os.getpid()),
        )  # fmt: skip
        try:
            while (status := process.poll()) is None:
                time.sleep(_TICK)  # Ray interrupts a task that is cancelled between two steps of Python alone
        except BaseException:
            end(process, _PATIENCE / 2)
            raise
    if status and (manifest_of(job.run_dir) or {}).get("status") == "running":
        where = f"{socket.gethostname()} with status {status}"
        raise ChildProcessError(f"the process of {job.name} ended on {where}, and its run directory does not say why")
    return status
