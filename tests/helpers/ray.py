"""A Ray of two raylets, environments that dawdle or kill, and how a command is run, watched and killed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.shop import Shop
from tests.helpers import forked
from tests.helpers.engines import require

ROOT = Path(__file__).parents[2]
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # its workers would be the last to get a processor
ENV = {**os.environ, **RAY, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
POISON = "poison"
PATIENCE = 1800  # seconds; a guard against hanging for ever, not a measurement


def require_ray() -> None:
    """Skip where there is no Ray."""
    require("Ray", importlib.util.find_spec("ray") is not None, "pip install -c constraints.txt 'offline-agent[ray]'")


class SlowShop(Shop):
    """The shop, every call of which takes a while.

    Args:
        seconds: Slept in each call.
    """

    def __init__(self, seconds: float = 0.02) -> None:
        self._seconds = seconds
        super().__init__()

    @classmethod
    def demonstrate(cls, task: Mapping[str, Any], *given: Any, **named: Any) -> Any:
        """Have the expert look at a shop that takes no time: it goes through the whole history for every turn."""
        return Shop.demonstrate({name: task[name] for name in task if name != "number"}, *given, **named)


def _slow(method: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(method)
    def tool(self: SlowShop, *given: Any, **named: Any) -> str:
        time.sleep(self._seconds)
        return method(self, *given, **named)

    return tool


for _name in EnvSpec(Shop).tools.names:
    setattr(SlowShop, _name, _slow(getattr(Shop, _name)))


class PoisonShop(SlowShop):
    """The shop with a task that kills any process that opens it."""

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        for number, task in enumerate(super().tasks(split)):
            yield {**task, "task_id": POISON if number == 4 else f"t-{number}", "number": number}

    def reset(self, number: int = 0, **task: Any) -> str:
        if number == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(**task)


def patiently(start: Callable[[], Any]) -> Any:
    """Start something of Ray's, which gives up after 30 s on a busy machine: try again."""
    for _ in range(9):
        with contextlib.suppress(Exception):
            return start()
    return start()


class TwoRaylets:
    """A cluster on this machine: a head and a node, each with one raylet and two CPUs."""

    def __init__(self) -> None:
        os.environ.update(RAY, PYTHONPATH=str(ROOT))  # workers import these tests
        from ray.cluster_utils import Cluster

        self._node_arguments = {"num_cpus": 2, "object_store_memory": 200 << 20}
        head = {**self._node_arguments, "include_dashboard": False}
        self.cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
        self.mend()
        self.address = str(self.cluster.address)

    def kill_second(self) -> None:
        """Kill the second raylet and whatever runs under it."""
        self.cluster.remove_node(self.second, allow_graceful=False)

    def mend(self) -> None:
        """Put a second raylet there again."""
        self.second = patiently(lambda: self.cluster.add_node(**self._node_arguments))

    def workers(self, second: bool = False) -> list[psutil.Process]:
        """Return the workers that carry out a task; with `second`, those under the second raylet."""
        raylets = [self.second] if second else [self.cluster.head_node, self.second]
        found = []
        for node in raylets:
            for info in node.all_processes["raylet"]:
                for child in psutil.Process(info.process.pid).children():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if "ray::_run" in "".join(child.cmdline()):
                            found.append(child)
        return found

    def stop(self) -> None:
        """Take everything away."""
        self.cluster.shutdown()


def command(pipeline: str, run_dir: Path, *keys: str) -> list[str]:
    """Return the command line of a pipeline."""
    return [sys.executable, "-m", f"offline_agent.pipelines.{pipeline}", *keys, f"run_dir={run_dir}"]


def run(pipeline: str, run_dir: Path, *keys: str) -> subprocess.CompletedProcess[str]:
    """Run a pipeline to its end."""
    return forked.run(command(pipeline, run_dir, *keys), env=ENV, timeout=PATIENCE)


class Started:
    """A pipeline that runs beside the test."""

    def __init__(self, pipeline: str, run_dir: Path, *keys: str) -> None:
        self.run_dir = run_dir
        self.process = forked.Process(command(pipeline, run_dir, *keys), env=ENV)

    def said(self) -> str:
        """Return what it printed so far."""
        return "".join(self.process.said())

    def records(self, log: str = "0000") -> list[dict[str, Any]]:
        """Return the whole records of its log."""
        path = self.run_dir / "events" / f"{log}.jsonl"
        lines = path.read_text().splitlines(keepends=True)[1:] if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def until(self, there: Callable[[], Any], what: str) -> Any:
        """Wait for something to be there while it runs, and return it; fails where it ends before."""
        until = time.monotonic() + PATIENCE
        while not (found := there()):
            assert self.process.poll() is None, f"ended before {what}: {self.said()}"
            assert time.monotonic() < until, f"never {what}: {self.said()}"
            time.sleep(0.01)
        return found

    def end(self) -> int:
        """Wait for it and return its status."""
        return self.process.wait(timeout=PATIENCE)


def digests(run_dir: Path, *folders: str) -> dict[str, str]:
    """Return the hash of every file in folders of a run."""
    files = [f for folder in folders for f in sorted((run_dir / folder).rglob("*")) if f.is_file()]
    assert files, f"nothing in {run_dir}: {folders}"
    return {str(f.relative_to(run_dir)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
