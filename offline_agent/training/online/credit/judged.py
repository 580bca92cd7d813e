"""Judged attempts: what a way of credit is given. Numbers, no tensors."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offline_agent.rollouts.attempts import Attempt
    from offline_agent.training.online.groups import Group


@dataclass(frozen=True)
class JudgedAttempt:
    """A judged attempt; without ids where nothing can be learnt from it, and it only is in its group's mean."""

    group: Group
    place: int
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logps: tuple[float, ...] | None
    reward: float
    earned: tuple[float, ...] | None = None
    starts: tuple[int, ...] = ()

    @property
    def turns(self) -> tuple[int, ...]:
        """Lengths of the runs of agent tokens; between two turns there always is a prompt or an observation."""
        return tuple(sum(1 for _ in run) for own, run in groupby(self.mask) if own)

    @property
    def numbers(self) -> list[int]:
        """The turns that these are, among all of the attempt's."""
        attempt = self.group.attempts[self.place]
        return [number for number in spoken(attempt) if own_turn(attempt, number)]

    @property
    def branched(self) -> bool:
        """Whether it branched from another member's history."""
        return self.group.attempts[self.place].branch is not None

    @property
    def factors(self) -> tuple[float, ...] | None:
        """Mean turns of a source / (number of the turn, from 1) for each turn of a branch; None for other members.

        Branches leave their sources at any turn alike, so turn s of a branch is one of s + 1 ways to get there: with
        these factors a branch's turns are expected to pull as much, at every depth, as those of one that began at the
        beginning.
        """
        return tuple(self.group.mean_turns / (number + 1) for number in self.numbers) if self.branched else None

    @property
    def task_id(self) -> str:
        """Its task, which is its group."""
        return self.group.task.task_id

    @property
    def own_earned(self) -> tuple[float, ...] | None:
        """`TrainingSample.earned`."""
        if self.earned is None:
            return None
        found, numbers = [0.0] * len(self.numbers), self.numbers
        _, first = self.group.attempts[self.place].branch or (0, 0)
        for number, reward in list(enumerate(self.earned))[first:] if numbers else ():
            found[max(0, bisect_right(numbers, number) - 1)] += reward
        return tuple(found)


def spoken(attempt: Attempt) -> list[int]:
    """Return the turns of which a token was sampled: not even an end is possible, and leaves nothing in the mask."""
    return [number for number, step in enumerate(attempt.steps) if step.action.token_ids != ()]


def own_turn(attempt: Attempt, turn: int) -> bool:
    """Return whether a turn is trained on: the policy chose it, and not in the attempt this one branched from."""
    return turn not in attempt.explored and (attempt.branch is None or turn >= attempt.branch[1])


Advantages = list[list[float] | None]
"""For each judged attempt one number for each of `JudgedAttempt.numbers`; None = it has none."""
