"""Goals as data: when two are the same, which are kept for evaluation, and which words name them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from offline_agent.errors import ConfigError, EnvironmentFault

if TYPE_CHECKING:
    from offline_agent.envs.base import EnvSpec

_WORD = re.compile(r"\w+")


def goal_key(args: Mapping[str, Any]) -> str:
    """Return a text that two goals share exactly when their arguments are equal."""
    return json.dumps(args, sort_keys=True, separators=(",", ":"), default=str)


def restricted(args: Mapping[str, Any], goal: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task's arguments that a goal speaks of."""
    return {name: args[name] for name in goal if name in args}


def evaluation_tasks(spec: EnvSpec) -> list[Mapping[str, Any]]:
    """Return the arguments of every validation and test task.

    Empty where the environment takes no relabelling, lists no tasks, or refuses a split (it has none by that name).
    """
    if why_no_hindsight(spec) is not None:
        return []
    found: list[Mapping[str, Any]] = []
    for split in ("validation", "test"):
        try:
            found += [task.args for task in spec.tasks(split)]
        except (ConfigError, EnvironmentFault):
            continue
    return found


def why_no_hindsight(spec: EnvSpec) -> str | None:
    """Return why failures of this environment cannot be relabelled; None where they can."""
    reason = getattr(spec.cls, "hindsight", None)
    if isinstance(reason, str):
        return reason
    if not hasattr(spec.cls, "achieved_goal"):
        return "the environment does not say what a state achieves (no achieved_goal)"
    return None


def words(text: str) -> set[str]:
    """Return the words of a text by which a goal can be told: of three letters or more, or with a digit."""
    return {word for word in _WORD.findall(text.casefold()) if len(word) >= 3 or any(c.isdigit() for c in word)}


def leaf_words(value: Any) -> set[str]:
    """Return the words of all texts in nested values."""
    if isinstance(value, Mapping):
        return set().union(*map(leaf_words, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(leaf_words, value))
    return words(value) if isinstance(value, str) else set()


def digest(text: str) -> str:
    """Return ten hex digits that identify a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
