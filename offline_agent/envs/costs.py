"""Costs of an environment: seconds of its calls; memory, file handles and processes that one open instance holds."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.scripted_play import ScriptedPlayer
from offline_agent.errors import EnvironmentFault
from offline_agent.memory import free_memory
from offline_agent.records import Task

MOST = 4096
"""Environments that may be open at once where neither memory nor file handles set a limit."""
MOST_PROCESSES = 256
RESERVED_HANDLES = 64  # for tables, logs and connections of the run
_SOME = 4  # instances that are opened to measure one, where opening is quick
_QUICK = 0.1  # seconds


class Holding(NamedTuple):
    """Memory (bytes), file handles and processes that something holds; or that are free."""

    memory: int
    handles: int
    processes: int


class Costs(NamedTuple):
    """Seconds that opening, resetting, a call and a copy take; `copy` is None where states are replayed."""

    opening: float
    reset: float
    call: float
    copy: float | None

    def __str__(self) -> str:
        copies = "states are restored by replay" if self.copy is None else f"a copy {_seconds(self.copy)}"
        opening, reset, call = map(_seconds, (self.opening, self.reset, self.call))
        return f"opening takes {opening}, a reset {reset}, a call {call} (median), {copies}"

    def of_search(self, simulations: int, steps: int) -> float:
        """Return the seconds of the environment that searching one task takes at most.

        Args:
            simulations: Simulations of the search.
            steps: Actions of an episode; each simulation makes so many, and restores one state.
        """
        restore = self.copy if self.copy is not None else self.reset + steps / 2 * self.call
        return self.opening + self.reset + simulations * (steps * self.call + restore)


def measured(spec: EnvSpec, player: ScriptedPlayer, tasks: Iterable[Task]) -> Costs:
    """Return what opening, resetting, calling and copying an environment cost, on the first of the tasks.

    Raises:
        EnvironmentFault: The environment broke.
    """
    task = next(iter(tasks))
    actions = player.walk(task).context.actions()
    started = time.perf_counter()
    episode = spec.open()
    opened = time.perf_counter()
    copies: list[float] = []
    calls: list[float] = []
    with contextlib.closing(episode):
        episode.reset(task)
        reset = time.perf_counter()
        for action in actions:
            if episode.terminated:
                break
            if not spec.replay_only:
                with contextlib.suppress(EnvironmentFault):  # the check of copies tells it
                    copies.append(_timed(lambda: episode.copy().close()))
            calls.append(_timed(partial(episode.step, action)))
    return Costs(
        opened - started, reset - opened, median(calls) if calls else 0.0, median(copies) if copies else None
    )


def _timed(job: Any) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.2g} ms" if value < 0.1 else f"{value * 1000:.0f} ms"


# -- memory, handles and processes -----------------------------------------------------------------------------------


def holding_of_one(spec: EnvSpec, task: Task) -> Holding:
    """Return what one open instance holds, in this process and in those that it starts.

    The first instance is not counted: it loads modules and data that all share. What others give back meanwhile (a
    process of theirs ends) does not count against it.

    Raises:
        EnvironmentFault: The environment does not open.
    """
    episodes: list[Episode] = []
    try:
        spent = _timed(lambda: episodes.append(_opened(spec, task)))
        more = _SOME if spent < _QUICK else 1
        gc.collect()
        before, handles = _memory_of_each(), _handles()
        for _ in range(more):
            episodes.append(_opened(spec, task))
        after = _memory_of_each()
        grown = sum(max(0, memory - before.get(process, 0)) for process, memory in after.items())
        added = (grown, max(0, _handles() - handles), len(after.keys() - before.keys()))
        return Holding(*(-(-one // more) for one in added))
    finally:
        for episode in episodes:
            with contextlib.suppress(EnvironmentFault):
                episode.close()


def _opened(spec: EnvSpec, task: Task) -> Episode:
    episode = spec.open()
    try:
        episode.reset(task)
    except EnvironmentFault:
        episode.close()
        raise
    return episode


def capacity(one: Holding, free: Holding) -> int:
    """Return how many environments may be open at once: half of the free memory, and the free handles but a reserve.

    Args:
        one: What one holds.
        free: What is free; its processes are how many may be started.
    """
    limits = [MOST]
    if one.memory:
        limits.append(free.memory // 2 // one.memory)
    if one.handles:
        limits.append((free.handles - RESERVED_HANDLES) // one.handles)
    if one.processes:
        limits.append(free.processes // one.processes)
    return max(1, min(limits))


def _memory_of_each() -> dict[int, int]:
    """Return the bytes that this process and those that it started hold; none where the system does not tell."""
    try:
        return {process: _memory(process) for process in _descendants(os.getpid())}
    except OSError:  # not Linux
        return {}


def _handles() -> int:
    """Return the file handles that this process holds; 0 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # not Linux
        return 0


def free_now() -> Holding:
    """Return the memory and file handles that are free, and how many processes may be started."""
    return Holding(free_memory(), _free_handles(), MOST_PROCESSES)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path(f"/proc/{name}/stat").read_text(errors="replace")
                children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    family = [root]
    for process in family:  # it grows while it is read
        family += children.get(process, [])
    return family


def _memory(process: int) -> int:
    """Return the bytes that a process holds, those that it shares with others divided among them."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _free_handles() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2**20
    return max(0, soft - _handles())
