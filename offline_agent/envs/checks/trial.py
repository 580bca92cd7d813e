"""Trial of an environment: whether `copy.deepcopy` is a snapshot, what an open instance holds, how long episodes are.

The search relies on copies, so they are tried on a real episode first.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import psutil

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.boundary import ProcessState
from offline_agent.envs.play import ScriptedPlayer, play, script
from offline_agent.envs.settings import DEFAULT_STEPS
from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Context, Task
from offline_agent.store.provenance import free_memory

MOST = 4096
"""Environments that may be open at once where neither memory nor file handles set a limit."""
MOST_PROCESSES = 256
RESERVED_HANDLES = 64  # for tables, logs and connections of the run
_SOME = 4  # instances that are opened to measure one, where opening is quick
_QUICK = 0.1  # seconds

Trace = list[tuple[str | None, str | None]]
"""Observation and fingerprint of each state."""


class _NoCopy(Exception):
    """The environment cannot be copied; the message says why."""


def copying_fault(spec: EnvSpec, task: Task, actions: Sequence[Action]) -> str | None:
    """Return why copies of this environment cannot be trusted, or None where they can.

    One episode is stepped through `actions`; before every step a copy is set aside. Each copy, stepped afterwards,
    must show what the original showed. Where one does not, a fresh episode is stepped too: if that differs as well the
    environment is not deterministic, which says nothing about its copies (and replay would be worse).

    Args:
        spec: The environment.
        task: A task to try it on.
        actions: Actions to take; the trial ends early where the episode does.

    Raises:
        EnvironmentFault: The environment does not open or broke while being stepped.
    """
    copies: list[tuple[Context, Episode]] = []

    def set_aside(context: Context) -> None:
        try:
            copies.append((context, episode.copy()))
        except EnvironmentFault as fault:
            raise _NoCopy(str(fault)) from fault

    episode = spec.open()
    try:
        seen = _trace(episode, task, actions, before_step=set_aside)
    except _NoCopy as fault:
        return str(fault)
    taken = actions[: len(copies)]
    for start, (context, copied) in enumerate(copies):
        if _trace(copied, task, taken, context)[1:] != seen[start + 1 :]:
            if _trace(spec.open(), task, taken) == seen:
                return f"{spec.name}: a copy made after {start} actions answered differently: copies share state"
            return None
    return None


def _trace(
    episode: Episode,
    task: Task,
    actions: Sequence[Action],
    after: Context | None = None,
    before_step: Callable[[Context], None] | None = None,
) -> Trace:
    """Play the actions and close the episode; return what each state showed, the one at the start included."""
    out: Trace = []
    scripted = script(actions)

    def choose(context: Context) -> Action | None:
        out.append((context.observation, episode.fingerprint()))
        action = scripted(context)
        if action is not None and before_step is not None:
            before_step(context)
        return action

    with contextlib.closing(episode):
        end = play(episode, task, choose, len(actions) + 1, after=after, judge=False)
        if episode.terminated:
            out.append((end.context.observation, episode.fingerprint()))
    return out


class Holding(NamedTuple):
    """Memory (bytes), file handles and processes that something holds; or that are free."""

    memory: int
    handles: int
    processes: int


def holding_of_one(spec: EnvSpec, task: Task) -> Holding:
    """Return what one open instance holds, in this process and in those that it starts.

    The first instance is not counted: it loads modules and data that all share. What others give back meanwhile (a
    process of theirs ends) does not count against it.

    Raises:
        EnvironmentFault: The environment does not open.
    """
    episodes: list[Episode] = []

    def one_more() -> None:
        episodes.append(spec.open())
        episodes[-1].reset(task)

    started = time.perf_counter()
    try:
        one_more()
        more = _SOME if time.perf_counter() - started < _QUICK else 1
        gc.collect()
        before, handles = _memory_of_each(), psutil.Process().num_fds()
        for _ in range(more):
            one_more()
        after = _memory_of_each()
        grown = sum(max(0, memory - before.get(process, 0)) for process, memory in after.items())
        added = (grown, max(0, psutil.Process().num_fds() - handles), len(after.keys() - before.keys()))
        return Holding(*(-(-one // more) for one in added))
    finally:
        for episode in episodes:
            with contextlib.suppress(EnvironmentFault):
                episode.close()


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
    """Return the bytes that this process and those that it started hold, shared ones divided among their owners."""
    held: dict[int, int] = {}
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        held[process.pid] = 0  # it counts as a process also where its memory may not be read
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            facts = process.memory_full_info()
            held[process.pid] = getattr(facts, "pss", facts.uss)  # only Linux tells shares
    return held


def free_now() -> Holding:
    """Return the memory and file handles that are free, and how many processes may be started."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    handles = 2**20 if soft == resource.RLIM_INFINITY else max(0, soft - psutil.Process().num_fds())
    return Holding(free_memory(), handles, MOST_PROCESSES)


_MEASURED = 8  # training tasks that the expert plays
_ROOM = 2  # a policy may need this many times the expert's actions
_LONGEST = 250  # actions after which the expert is stopped
_SECONDS = 120.0  # time for all of its plays


def episode_length(spec: EnvSpec) -> int:
    """Return the longest episode of an environment where the user names none.

    It is the class's `max_steps`; else twice the most actions that the expert needs for one of the first training
    tasks, at least `DEFAULT_STEPS`; else `DEFAULT_STEPS`. The same environment and arguments give the same number.

    Raises:
        ConfigError, EnvironmentFault: The tasks cannot be listed.
    """
    if spec.max_steps is not None:
        return spec.max_steps
    if spec.demonstrate is None:
        return DEFAULT_STEPS
    needs = _in_time(spec, list(itertools.islice(spec.tasks("train"), _MEASURED)))
    return max([DEFAULT_STEPS, *(_ROOM * need for need in needs)])


def _in_time(spec: EnvSpec, tasks: Sequence[Task]) -> list[int]:
    """Return `_expert_needs`, measured in a thread of its own; nothing where it hangs.

    Changes that the environment makes to this process are undone here, not in the thread: Python allows signal handlers
    to be set in the main thread alone, and a thread that hangs must not undo anything later. A search tells of them.
    """
    found: list[list[int]] = []
    surroundings = ProcessState()
    thread = threading.Thread(target=lambda: found.append(_expert_needs(spec, tasks)), daemon=True)
    thread.start()
    thread.join(_SECONDS)
    surroundings.put_back()
    return found[0] if found else []


def _expert_needs(spec: EnvSpec, tasks: Iterable[Task]) -> list[int]:
    """Return the actions of the expert for each task that it solves.

    A task where it raises is left out: the check `semantic.oracle_max` tells of it.
    """
    player, needs = ScriptedPlayer(spec, _LONGEST), []
    for task in tasks:
        try:
            played = player.expert(task)
        except BaseException:  # the expert is the user's own code, which no boundary wraps
            continue
        if played.verdict is not None and played.verdict.success:
            needs.append(len(played.steps))
    return needs
