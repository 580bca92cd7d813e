"""Group-relative ranking: attempts at one task, compared two at a time, each pair in both orders.

A judge that compares has a method (or an attribute) `compare(first, second)`, which returns how much the first is the
better one: 1.0 = the first, 0.0 = the second, 0.5 = as good as each other, None = it cannot say. A comparison counts
only where the swapped one says the same; judges of language prefer a place, and that must decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

from offline_agent.errors import NoAnswer, ends_the_run, in_words
from offline_agent.records import Trajectory, Verdict

Compare = Callable[[Trajectory, Trajectory], float | None]
"""Returns in [0, 1] how much the first trajectory is better than the second; where it cannot say, None, or it raises
`NoAnswer` with the reason.
"""

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
    return [_verdict(one, name, version) for one in _records(attempts, compare, _pairs(len(attempts)))]


def ranks(attempts: Sequence[Trajectory], compare: Compare, workers: int = 1) -> list[Record]:
    """Return how each attempt at one task compares with all others, whatever their order.

    Args:
        attempts: The attempts; n of them are n·(n − 1) calls of the judge.
        compare: The judge's method.
        workers: Pairs that are compared at once.
    """
    return _records(attempts, compare, combinations(range(len(attempts)), 2), workers)


@dataclass
class Record:
    """The comparisons of one attempt with others.

    Attributes:
        wins, losses, ties: Their numbers; a pair that is judged by its order is a tie.
        error: Why a comparison failed, the last of them; None where none did.
    """

    wins: int = 0
    losses: int = 0
    ties: int = 0
    error: str | None = None

    @property
    def compared(self) -> int:
        """Number of comparisons that say something."""
        return self.wins + self.losses + self.ties

    @property
    def share(self) -> float | None:
        """(wins + ties / 2) / comparisons, in [0, 1]; None without a comparison."""
        return (self.wins + self.ties / 2) / self.compared if self.compared else None


def _records(
    attempts: Sequence[Trajectory], compare: Compare, pairs: Iterable[tuple[int, int]], workers: int = 1
) -> list[Record]:
    def settled(pair: tuple[int, int]) -> int | str | None:
        try:
            found = both_orders(compare, attempts[pair[0]], attempts[pair[1]])
            return found.error if found.settled is None else found.settled
        except BaseException as error:
            if ends_the_run(error):
                raise
            return f"the judge raised {in_words(error)}"

    out, asked = [Record() for _ in attempts], list(pairs)
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(settled, asked)) if workers > 1 else [settled(pair) for pair in asked]
    for (one, other), result in zip(asked, found, strict=True):
        if result is None or isinstance(result, str):
            out[one].error = out[other].error = result or "the judge could not compare it"
        elif result == 0:
            out[one].ties += 1
            out[other].ties += 1
        else:
            better, worse = (one, other) if result > 0 else (other, one)
            out[better].wins += 1
            out[worse].losses += 1
    return out


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
        error: Why it cannot say; None where it gives no reason.
    """

    forward: int | None
    backward: int | None
    error: str | None = None

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
    backward, backward_error = _said(compare, second, first)
    forward, forward_error = _said(compare, first, second)
    return Swapped(forward, None if backward is None else -backward, forward_error or backward_error)


def _said(compare: Compare, first: Trajectory, second: Trajectory) -> tuple[int | None, str | None]:
    try:
        return _sign(compare(first, second)), None
    except NoAnswer as error:
        return None, str(error)


def _sign(value: float | None) -> int | None:
    if value is None:
        return None
    number = float(value)
    if not (math.isfinite(number) and 0.0 <= number <= 1.0):
        raise ValueError(f"compare returned {value!r}; it must be in [0, 1], or None")
    return (number > 0.5) - (number < 0.5)


def _verdict(record: Record, name: str, version: str) -> Verdict:
    wins, losses, ties = record.wins, record.losses, record.ties
    evidence = {RELATIVE: True, "wins": wins, "losses": losses, "ties": ties}
    if wins == losses:
        detail = (record.error or "there is no other attempt to compare it with") if not record.compared else (
            f"as good as the others: {wins} won, {losses} lost, {ties} tied"
        )  # fmt: skip
        return Verdict(None, None, name, version, evidence, detail)
    return Verdict(record.share, wins > losses, name, version, evidence)
