"""Adapters of other projects' environments, and what they share.

An adapter is a module with a function `adapt(rest, args) -> class`: see `offline_agent.envs.base.environment_class`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_CONTRACT = frozenset(
    ("achieved_goal", "demonstrate", "fingerprint", "get_reward", "hindsight", "name", "tasks", "turn_reward")
)


def seeds(split: str, count: int) -> range:
    """Return the seeds of a split's tasks; no seed is in two splits.

    Args:
        split: `train`, `validation` or `test`.
        count: How many.
    """
    start = {"train": 0, "validation": 1_000_000, "test": 2_000_000}[split]
    return range(start, start + count)


def tool_method(name: str) -> Callable[..., str]:
    """Return the method of a tool: it calls the environment's `_take(name, arguments)`."""

    def tool(self: Any, **arguments: Any) -> str:
        told: str = self._take(name, arguments)
        return told

    tool.__name__ = name
    return tool


def refused_names(cls: type, names: Iterable[str]) -> set[str]:
    """Return the names of tools that the contract, or a class's own members, have taken."""
    return {name for name in names if name in _CONTRACT or name.startswith("_") or hasattr(cls, name)}
