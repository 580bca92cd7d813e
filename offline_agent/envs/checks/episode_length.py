"""Longest episode of an environment: declared by its class, or measured from its scripted expert."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import ScriptedPlayer
from offline_agent.envs.process_state import ProcessState
from offline_agent.envs.settings import DEFAULT_STEPS
from offline_agent.records import Task

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
