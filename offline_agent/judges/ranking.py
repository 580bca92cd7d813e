"""Group-relative ranking: attempts at one task, compared two at a time, each pair in both orders.

A judge that compares has a method (or an attribute) `compare(first, second)`, which returns how much the first is the
better one: 1.0 = the first, 0.0 = the second, 0.5 = as good as each other, None = it cannot say. A comparison counts
only where the swapped one says the same; judges of language prefer a place, and that must decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from offline_agent.errors import ends_the_run, in_words
from offline_agent.records import Trajectory, Verdict

Compare = Callable[[Trajectory, Trajectory], float | None]
"""Returns in [0, 1] how much the first trajectory is better than the second; None where it cannot say."""

RELATIVE = "relative"
"""Key of the evidence of a verdict that says only how an attempt compares with others; it proves no success."""

_OTHERS = 8  # attempts that each one is compared with, at most


class Verifier(Protocol):
    """A judge, or what stands for one.

    Attributes:
        name, version: Of its verdicts.
        compare: Compares two attempts; None where it judges one at a time.
    """

    name: str
    version: str
    compare: Compare | None

    def __call__(self, trajectory: Trajectory, /) -> Verdict:
        """Return the verdict on a trajectory."""
        ...


def verdicts(attempts: Sequence[Trajectory], judge: Verifier | None) -> list[Verdict | None]:
    """Return a judge's verdicts on attempts at one task: by comparing them where it can, else one by one; None without
    a judge.
    """
    compare = getattr(judge, "compare", None)
    if judge is None:
        return [None] * len(attempts)
    if compare is not None:
        return list(rank(attempts, compare, judge.name, judge.version))
    return [judge(attempt) for attempt in attempts]


def rank(attempts: Sequence[Trajectory], compare: Compare, name: str, version: str) -> list[Verdict]:
    """Return the verdicts on attempts at one task, by how many of the others each one beats.

    The score is (wins + ties / 2) / comparisons. More wins than losses are a success, fewer a failure. With as many
    of both, or without a comparison, there is no score: who is better is not known. Each attempt is compared with
    all others, with at most 8 where there are more.

    Args:
        attempts: The attempts, in an order that does not depend on chance.
        compare: The judge's method.
        name, version: Of the judge, for the verdicts.
    """
    wins, losses, ties = ([0] * len(attempts) for _ in range(3))
    errors: list[str | None] = [None] * len(attempts)
    for one, other in _pairs(len(attempts)):
        try:
            found = both_orders(compare, attempts[one], attempts[other]).settled
        except BaseException as error:
            if ends_the_run(error):
                raise
            errors[one] = errors[other] = f"the judge raised {in_words(error)}"
            continue
        if found is None:
            errors[one] = errors[other] = "the judge could not compare it"
        elif found == 0:
            ties[one] += 1
            ties[other] += 1
        else:
            better, worse = (one, other) if found > 0 else (other, one)
            wins[better] += 1
            losses[worse] += 1
    return [_verdict(*counts, name, version) for counts in zip(wins, losses, ties, errors, strict=True)]


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of numbers: all, or those of numbers that are near each other in a ring."""
    if count <= _OTHERS + 1:
        yield from ((one, other) for one in range(count) for other in range(one + 1, count))
    else:
        yield from ((one, (one + step) % count) for one in range(count) for step in range(1, _OTHERS // 2 + 1))


@dataclass(frozen=True)
class Swapped:
    """A comparison in both orders.

    Attributes:
        forward, backward: Whether the first attempt is the better one, said with it in the first place and in the
            second: 1 = it is, -1 = the other is, 0 = they are as good; None where the judge cannot say.
    """

    forward: int | None
    backward: int | None

    @property
    def settled(self) -> int | None:
        """The verdict of both orders; 0 where they disagree, None where the judge cannot say in one of them."""
        if self.forward is None or self.backward is None:
            return None
        return self.forward if self.forward == self.backward else 0


def both_orders(compare: Compare, first: Trajectory, second: Trajectory) -> Swapped:
    """Return a comparison in both orders.

    Raises:
        ValueError: The judge returned something that is not in [0, 1].
    """
    backward = _sign(compare(second, first))
    return Swapped(_sign(compare(first, second)), None if backward is None else -backward)


def _sign(value: float | None) -> int | None:
    if value is None:
        return None
    number = float(value)
    if not (math.isfinite(number) and 0.0 <= number <= 1.0):
        raise ValueError(f"compare returned {value!r}; it must be in [0, 1], or None")
    return (number > 0.5) - (number < 0.5)


def _verdict(wins: int, losses: int, ties: int, error: str | None, name: str, version: str) -> Verdict:
    compared = wins + losses + ties
    evidence = {RELATIVE: True, "wins": wins, "losses": losses, "ties": ties}
    if wins == losses:
        told = (error or "there is no other attempt to compare it with") if not compared else (
            f"as good as the others: {wins} won, {losses} lost, {ties} tied"
        )  # fmt: skip
        return Verdict(None, None, name, version, evidence, told)
    return Verdict((wins + ties / 2) / compared, wins > losses, name, version, evidence)
