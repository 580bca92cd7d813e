"""Is `copy.deepcopy` of an environment a snapshot? Tried on a real episode before the search relies on it."""

from __future__ import annotations

from collections.abc import Sequence

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Task
from offline_agent.search.tree import observation_hash

Trace = list[tuple[str, str | None]]


def copying_fault(spec: EnvSpec, task: Task, actions: Sequence[Action]) -> str | None:
    """Return why copies of this environment cannot be trusted, or None where they can.

    One episode is stepped through `actions`; before every step a copy is set aside. Each copy, stepped afterwards,
    must show what the original showed, and a fresh replay must too.

    Args:
        spec: The environment.
        task: A task to try it on.
        actions: Actions to take; the trial ends early where the episode does.

    Raises:
        EnvironmentFault: The environment does not open or broke while being stepped.
    """
    episode = spec.open()
    seen: Trace = [(observation_hash(episode.reset(task)), episode.fingerprint())]
    copies = []
    for action in actions:
        if episode.terminated:
            break
        try:
            copies.append(episode.copy())
        except EnvironmentFault as fault:
            return str(fault)
        seen.append((observation_hash(episode.step(action).observation), episode.fingerprint()))
    episode.close()
    for start, copied in enumerate(copies):
        for depth in range(start, len(copies)):
            if copied.terminated:
                return f"{spec.name}: stepping the original after {start} actions changed its copy: they share state"
            shown = observation_hash(copied.step(actions[depth]).observation), copied.fingerprint()
            if shown != seen[depth + 1]:
                return f"{spec.name}: a copy made after {start} actions answered differently: copies share state"
        copied.close()
    return None
