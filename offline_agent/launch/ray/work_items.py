"""Work items of a Ray pool, their events, and the settings of the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from offline_agent.config.launch import RaySection
from offline_agent.errors import OfflineAgentError

LOST = "lost"


class PoolError(OfflineAgentError):
    """The cluster refused, or the workers die again and again."""


@dataclass(slots=True, eq=False)
class WorkItem:
    """A unit of work.

    Attributes:
        name: For messages.
        payload: The worker's input. It is read when the item is handed out. The driver keeps it up to date with the
            records that it received, so that the next worker resumes there.
        deaths: Workers that died while they had the item.
        alone: Those of them that had no other item.
    """

    name: str
    payload: Any
    deaths: int = 0
    alone: int = 0


class ItemEvent(NamedTuple):
    """An event of an item: `record` or `done` with the value that the worker sent, or `lost` with the reason."""

    item: WorkItem
    kind: str
    value: Any


class PoolSettings(RaySection):
    """Size and limits of a pool: the keys of `ray`, with numbers for what a run decides.

    Attributes:
        fixed: The cluster does not grow: a worker that does not fit now never will.
    """

    workers: int = 1
    in_flight: int = 64
    fixed: bool = False

    @classmethod
    def of(cls, keys: RaySection, workers: int, in_flight: int) -> PoolSettings:
        """Return the settings of a pool of so many workers, each with so many items at once."""
        return cls(**{**dict(keys), "workers": workers, "in_flight": in_flight, "fixed": keys.address is None})
