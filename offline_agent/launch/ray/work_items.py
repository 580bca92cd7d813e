"""Work items of a Ray pool, their events, and the settings of the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

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


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Size and limits of a pool; see the section `ray` of a configuration.

    Attributes:
        workers: Number of workers.
        cpus, gpus: Reserved for each worker.
        in_flight: Items that a worker has at once.
        deaths: An item is given up after so many workers died while they had it alone; a worker is left out after so
            many failures in a row.
        start_seconds: Longest wait for the first worker.
        silent_seconds: A worker that does not answer for so long counts as dead.
        fixed: The cluster does not grow: a worker that does not fit now never will.
    """

    workers: int
    cpus: float = 1.0
    gpus: float = 0.0
    in_flight: int = 64
    deaths: int = 3
    start_seconds: float = 600.0
    silent_seconds: float = 120.0
    fixed: bool = False
