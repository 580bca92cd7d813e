"""Trial of an environment's copies: whether `copy.deepcopy` is a snapshot, and what copies, steps and resets cost.

The search relies on copies, so they are tried on a real episode first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.play import begin, play, script
from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Context, Task

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


class SnapshotCosts(NamedTuple):
    """Seconds that opening and resetting an environment, a step, and a copy take."""

    reset: float
    step: float
    copy: float

    def replay(self, steps: float) -> float:
        """Return the seconds that a replay of so many steps takes."""
        return self.reset + steps * self.step


def costs(spec: EnvSpec, task: Task, actions: Sequence[Action]) -> SnapshotCosts:
    """Return the costs of stepping an environment through some actions, with a copy before each where it is isolated.

    Raises:
        EnvironmentFault: The environment broke.
    """
    started = time.perf_counter()
    episode = spec.open()
    begin(episode, task)
    reset, steps, copies = time.perf_counter() - started, [0.0], [0.0]
    for action in actions:
        if episode.terminated:
            break
        if spec.isolated:
            copies.append(_seconds(lambda: episode.copy().close()))
        steps.append(_seconds(partial(episode.step, action)))
    episode.close()
    return SnapshotCosts(reset, median(steps[1:] or steps), median(copies[1:] or copies))


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
