"""Is `copy.deepcopy` of an environment a snapshot? Tried on a real episode before the search relies on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Task
from offline_agent.search.tree import observation_hash

Trace = list[tuple[str, str | None]]


def copying_fault(spec: EnvSpec, task: Task, actions: Sequence[Action]) -> str | None:
    """Return why copies of this environment cannot be trusted, or None where they can.

    One episode is stepped through `actions`; before every step a copy is set aside. Each copy, stepped afterwards,
    must show what the original showed. Where one does not, a fresh episode is stepped too: if that differs as well the
    environment is not deterministic, which says nothing of its copies (and replay would be worse).

    Args:
        spec: The environment.
        task: A task to try it on.
        actions: Actions to take; the trial ends early where the episode does.

    Raises:
        EnvironmentFault: The environment does not open or broke while being stepped.
    """
    episode = spec.open()
    seen: Trace = [(observation_hash(episode.reset(task)), episode.fingerprint())]
    copies: list[Episode] = []
    for action in actions:
        if episode.terminated:
            break
        try:
            copies.append(episode.copy())
        except EnvironmentFault as fault:
            return str(fault)
        seen.append((observation_hash(episode.step(action).observation), episode.fingerprint()))
    episode.close()
    taken = actions[: len(copies)]
    for start, copied in enumerate(copies):
        if _trace(copied, taken[start:]) != seen[start + 1 :]:
            fresh = spec.open()
            again = [(observation_hash(fresh.reset(task)), fresh.fingerprint()), *_trace(fresh, taken)]
            if again == seen:
                return f"{spec.name}: a copy made after {start} actions answered differently: copies share state"
            return None
    return None


class Costs(NamedTuple):
    """Seconds that opening and resetting an environment, a step, and a copy take."""

    reset: float
    step: float
    copy: float

    def replay(self, steps: float) -> float:
        """Return the seconds that a replay of so many steps takes."""
        return self.reset + steps * self.step


def costs(spec: EnvSpec, task: Task, actions: Sequence[Action]) -> Costs:
    """Return what stepping an environment through some actions costs, with a copy before each where it has any.

    Raises:
        EnvironmentFault: The environment broke.
    """
    started = time.perf_counter()
    episode = spec.open()
    episode.reset(task)
    reset, steps, copies = time.perf_counter() - started, [0.0], [0.0]
    for action in actions:
        if episode.terminated:
            break
        if spec.isolated:
            copies.append(_seconds(lambda: episode.copy().close()))
        steps.append(_seconds(partial(episode.step, action)))
    episode.close()
    return Costs(reset, median(steps[1:] or steps), median(copies[1:] or copies))


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _trace(episode: Episode, actions: Sequence[Action]) -> Trace:
    """Step an episode and return what it showed; shorter than the actions where it was over before them."""
    out: Trace = []
    for action in actions:
        if episode.terminated:
            break
        out.append((observation_hash(episode.step(action).observation), episode.fingerprint()))
    episode.close()
    return out
