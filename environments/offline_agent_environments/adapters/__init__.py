"""Adapters of other projects' environments, and what they share.

An adapter is a module with a function `adapt(rest, args) -> class`: see `offline_agent.envs.base.environment_class`.
"""

from __future__ import annotations

from offline_agent.envs.adapting import adapted, refused_names

__all__ = ["adapted", "refused_names", "seeds"]


def seeds(split: str, count: int) -> range:
    """Return the seeds of a split's tasks; no seed is in two splits.

    Args:
        split: `train`, `validation` or `test`.
        count: How many.
    """
    start = {"train": 0, "validation": 1_000_000, "test": 2_000_000}[split]
    return range(start, start + count)
