"""Ranks within a group as rewards: attempts at one task, compared two at a time. Numbers, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from offline_agent.judges.ranking import Compare, Record, ranks

if TYPE_CHECKING:
    from offline_agent.rollouts.attempts import Attempt

ALONE = 1.0  # weight of ranks where nothing says the outcome


@dataclass(frozen=True)
class RankingReward:
    """Rewards r = (1 - w)·outcome + w·rank, with rank = (wins + ties / 2) / comparisons in the group.

    A success keeps more than any failure where w·(1 + gap) is at most gap, the least difference of their outcomes: 1
    for success and 0 for failure give w <= 1/2.

    Attributes:
        compare: The comparator; each pair is asked in both orders.
        weight: w; 1 = the ranks alone.
        workers: Pairs of a group that are compared at once.
    """

    compare: Compare
    weight: float = 0.5
    workers: int = 1

    def keep_in(self, folder: Path) -> None:
        """Keep what a comparator with a cache is told in a folder of the run."""
        keep = getattr(getattr(self.compare, "__self__", self.compare), "keep_in", None)
        if keep is not None:
            keep(folder)

    def of_group(
        self, attempts: Sequence[Attempt], outcomes: Sequence[float | None]
    ) -> tuple[list[float | None], list[str | None]]:
        """Return the reward of each attempt at one task, None = unscored, and why a rank is missing.

        Unscored are an attempt without an outcome, unless w = 1; one that an error or a limit of time cut; and one of
        which no comparison said anything. None of them is 0, and the first two are compared with nobody.

        Args:
            attempts: The group.
            outcomes: In [0, 1], of each; None = unknown.
        """
        episodes = [one.episode() for one in attempts]
        ranked = [
            place
            for place, (one, outcome) in enumerate(zip(attempts, outcomes, strict=True))
            if episodes[place] is not None
            and (one.cut_by not in ("time", "fault") if self.weight == ALONE else outcome is not None)
        ]
        rewards: list[float | None] = [None] * len(attempts)
        errors: list[str | None] = [None] * len(attempts)
        found = ranks([each for place in ranked if (each := episodes[place]) is not None], self.compare, self.workers)
        for place, record in zip(ranked, found, strict=True):
            if record.share is None:
                errors[place] = f"it has no rank: {_why(record)}"
            else:
                rewards[place] = (1 - self.weight) * (outcomes[place] or 0.0) + self.weight * record.share
        return rewards, errors


def _why(record: Record) -> str:
    return record.error or "there is no other attempt of the group to compare it with"


def most_weight(gap: float) -> float:
    """Return the largest weight of ranks that keeps every success above every failure; see `RankingReward`.

    Args:
        gap: How much more the least outcome of a success is than the greatest of a failure, in (0, 1].
    """
    return gap / (1 + gap)
