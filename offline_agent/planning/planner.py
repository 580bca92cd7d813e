"""Planner of one command: how its cost is estimated from a small run of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.planning.figures import Figure

if TYPE_CHECKING:
    from offline_agent.store.run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """A finished run from which figures are estimated.

    Attributes:
        path: Its run directory.
        summary: Its summary.json.
        known: The planned run begins with the same tasks (updates, rounds).
        memory: Largest resident memory of one of its processes, bytes; None = not measured.
    """

    path: Path
    summary: Mapping[str, Any]
    known: bool
    memory: int | None = None


class Planner:
    """The cost of one command."""

    def probe(self, config: Any) -> Any:
        """Return the configuration of a small run; the caller sets its `run_dir` and tracking."""
        raise NotImplementedError

    def expected(self, config: Any, seen: ReferenceRun | None) -> list[Figure]:
        """Return the figures of the whole run; without a reference run, from the configuration alone."""
        raise NotImplementedError

    def actual(self, config: Any, seen: ReferenceRun) -> dict[str, float | None]:
        """Return the actual values of a finished run, by figure; None = not known."""
        raise NotImplementedError

    def adopt(self, probe: ReferenceRun, run: RunDirectory) -> dict[str, float]:
        """Copy results of the probe into the run, where they are the run's own.

        Returns:
            The costs that the run need not pay again, by figure; they are added to its actual values.
        """
        return {}
