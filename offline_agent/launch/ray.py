"""Launcher of `launcher=ray`: shards of a search or an evaluation as tasks of a Ray cluster.

A task of Ray's runs a command line on a node, in a process of its own, as a Slurm job does. All that it does is in a
run directory that every node sees: a task that Ray starts again, after a node or a process died, resumes there. Ray
carries the command line there and its exit status back.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from offline_agent.config.build_prefs import RaySection, RunConfig
from offline_agent.config.iterate import IterateConfig
from offline_agent.crash_notes import end_with
from offline_agent.errors import ConfigError, OfflineAgentError
from offline_agent.launch.shards import cut, finished, is_whole, listed, manifest_of, shard_config
from offline_agent.launch.stages import end, write_config
from offline_agent.runner.pipeline import Command, Session
from offline_agent.store.provenance import python_path

_TICK = 0.2  # seconds
_LOOK = 2.0  # seconds between two looks at run directories and logs, which may be on a slow file system
_PATIENCE = 60.0  # seconds that stopped tasks have to end
_OBJECT_STORE = 200 << 20  # bytes; only command lines go through it
_PROBE_SECONDS = 5.0
_NOT_PASSED = ("RAY_", "CUDA_", "SLURM_", "HOSTNAME", "OMP_", "PWD", "TMPDIR")


class ClusterError(OfflineAgentError):
    """The cluster refused, or a task failed on it."""


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
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"launcher=ray needs Ray, which is not installed here ({error}): "
            "pip install -c constraints.txt 'offline-agent[ray]', or use launcher=local"
        ) from error
    address = config.ray.address
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(
            f"ray.address: nothing answers at {address} ({error}); start a cluster (`ray start --head --port=6379`, "
            "and on other machines `ray start --address=HOST:6379`), or set ray.address=null for a Ray on this machine"
        ) from error


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
        shards = cut(run_dir, tasks, asked.workers or max(1, fitting(asked.cpus, asked.gpus)))
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

    if (lack := no_room(asked.cpus, asked.gpus)) is not None:
        if asked.address is None:
            raise ClusterError(lack)
        say(f"{lack}; waiting, as the cluster may grow")
    task = ray.remote(_run).options(
        num_cpus=asked.cpus, num_gpus=asked.gpus, scheduling_strategy="SPREAD", max_retries=asked.deaths,
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
            start_new_session=True, preexec_fn=partial(end_with, os.getpid()),
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


# -- the cluster -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def connected(address: str | None, cpus: float) -> Iterator[None]:
    """Connect to a cluster, or start one on this machine and stop it at the end.

    Args:
        address: See `check`.
        cpus: Fewest CPUs that a Ray on this machine offers; Ray counts them and binds no processors.

    Raises:
        ClusterError: The cluster refused.
    """
    import ray
    import ray._private.worker as inner

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    inner._worker_logs_enabled = False  # keeps messages of its daemons from stdout; there is no public switch
    ours = {
        "address": "local", "num_cpus": max(os.cpu_count() or 1, math.ceil(cpus)), "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE, "_node_ip_address": "127.0.0.1",
    }  # fmt: skip
    how: dict[str, Any] = {**(ours if address is None else {"address": address}), "log_to_driver": False}
    try:
        with _handlers_kept():
            ray.init(**how, logging_level="ERROR")
    except Exception as error:  # Ray raises RuntimeError, ConnectionError, ValueError …
        with contextlib.suppress(Exception):
            ray.shutdown()
        where = "could not be started on this machine" if address is None else f"at {address} refused"
        raise ClusterError(
            f"Ray {where}: {type(error).__name__}: {' '.join(str(error).split())}. The command must be given on a "
            "machine of the cluster, with the same versions of Python and Ray"
        ) from error
    try:
        yield
    finally:
        with _handlers_kept():
            ray.shutdown()


def _machines() -> list[dict[str, float]]:
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def fitting(cpus: float, gpus: float) -> int:
    """Return how many tasks of this size fit into the idle cluster; a task that needs nothing counts as one CPU."""
    sizes = [("CPU", cpus), ("GPU", gpus)] if cpus or gpus else [("CPU", 1.0)]
    return sum(min(int(node.get(name, 0) // size) for name, size in sizes if size) for node in _machines())


def no_room(cpus: float, gpus: float) -> str | None:
    """Return the message for an idle cluster without a machine for a task of this size; None where there is one."""
    machines = [(node.get("CPU", 0), node.get("GPU", 0)) for node in _machines()]
    if any(has >= cpus and also >= gpus for has, also in machines):
        return None
    has = "; ".join(f"{has:g} CPUs, {also:g} GPUs" for has, also in machines) or "no node"
    return (
        f"there is no room for a task: each needs {cpus:g} CPUs and {gpus:g} GPUs on one machine, the cluster has "
        f"{has}. Ask for less (ray.cpus, ray.gpus), or add machines"
    )


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restore the signal handlers that Ray replaces; its own end the process without a message."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
