"""Balance: the rules that hold for all pairs together, against doubles, contradictions, and tasks that weigh too much.

All of it works on the columns of a `FactTable`, so that the pairs themselves can wait on disk. docs/pairs.md has the
rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_agent.errors import ConfigError
from offline_agent.preferences.dataset.candidates import KINDS, FactTable, PairFacts, facts_of, mean_length_gap
from offline_agent.preferences.refusals import Refusal
from offline_agent.records import PreferencePair

__all__ = ["Balance", "PairFacts", "Selection", "WeightedPairs", "balance", "facts_of", "mean_length_gap"]

Ints = NDArray[np.int64]
Refuse = Callable[[Refusal], object]
"""Takes each refusal as soon as it is known."""

_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Selection:
    """The pairs of a list that are kept, and why the others are not.

    Attributes:
        kept: int [k], positions in the list given, ascending.
        weights: float [k], 1/√(kept pairs of the task).
        refusals: Why each of the others was refused.
    """

    kept: tuple[int, ...]
    weights: tuple[float, ...]
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class WeightedPairs:
    """The pairs of a table that are kept, and their weights.

    Attributes:
        kept: int [k], positions in the table, ascending.
        weights: float [k], 1/√(kept pairs of the task).
        unmatched: Number of the kept pairs that length matching would have dropped, had they not been most of them.
        longer: Whether the chosen sides are the longer ones on average.
    """

    kept: Ints
    weights: NDArray[np.float64]
    unmatched: int = 0
    longer: bool = False


class Balance:
    """The rules that hold for all pairs together (docs/pairs.md, "Balance").

    Args:
        per_task: Most pairs of one task; the kinds take turns, so that none crowds the others out.
        per_depth: Most pairs of one task that diverge at one depth.
        max_length_gap: Greatest |mean Δ length| of chosen against rejected, as a share of the mean length of a side.
        most_dropped: Largest share of the pairs that length matching may drop; where it would drop more, the better
            sides of these tasks are the shorter (or longer) ones by nature, and it drops none.
        bins: Number of length bins; those of the largest |Δ| are thinned first.
        weighted: Weight each pair by 1/√(pairs of its task); False gives 1.
    """

    def __init__(
        self,
        per_task: int = 16,
        per_depth: int = 4,
        max_length_gap: float = 0.05,
        bins: int = 8,
        weighted: bool = True,
        most_dropped: float = 0.5,
    ) -> None:
        if min(per_task, per_depth, bins) < 1 or max_length_gap < 0:
            raise ConfigError(
                "per_task, per_depth and bins must be at least 1 and max_length_gap at least 0, got "
                f"{per_task!r}, {per_depth!r}, {bins!r}, {max_length_gap!r}"
            )
        self.per_task = per_task
        self.per_depth = per_depth
        self.max_length_gap = max_length_gap
        self.bins = bins
        self.most_dropped = most_dropped
        self.weighted = weighted

    def select(self, pairs: Sequence[PairFacts]) -> Selection:
        """Return the pairs that are kept: `choose` for facts that are all in memory."""
        refusals: list[Refusal] = []
        choice = self.choose(FactTable.of(pairs), refusals.append)
        return Selection(tuple(choice.kept.tolist()), tuple(choice.weights.tolist()), tuple(refusals))

    def choose(self, table: FactTable, refuse: Refuse) -> WeightedPairs:
        """Return the pairs that are kept after the rules on doubles, contradictions, caps and lengths, in this order.

        Args:
            table: The facts of all pairs; its keys are let go of.
            refuse: Takes why each of the others was refused, in the order of the rules.
        """
        left = self._once(table, refuse)
        left = self._consistent(table, left, refuse)
        table.let_go_of_keys()
        left = self._capped(table, left, refuse)
        left, unmatched = self._length_matched(table, left, refuse)
        longer = bool(table.delta(left).sum() > 0)
        if not self.weighted:
            return WeightedPairs(left, np.ones(len(left)), unmatched, longer)
        _, group, counts = np.unique(table.column("group", left), return_inverse=True, return_counts=True)
        return WeightedPairs(left, 1 / np.sqrt(counts[group.reshape(-1)]), unmatched, longer)

    def _once(self, table: FactTable, refuse: Refuse) -> Ints:
        """Keep the surest of those that say the same, the first one among equals."""
        order = np.lexsort((-table.column("confidence"), table.key("digest", 1), table.key("digest", 0)))
        first = np.zeros(len(table), bool)  # of a run of equal ones
        first[:1] = True
        for word in (0, 1):
            ranked = table.key("digest", word)[order]
            first[1:] |= ranked[1:] != ranked[:-1]
        best = order[first]
        twins = order[~first]
        best_of = np.repeat(best, np.diff(np.append(np.flatnonzero(first), len(table))))[~first]
        again = np.argsort(twins)
        for i, twin in zip(map(int, twins[again]), map(int, best_of[again]), strict=True):
            refuse(_refusal(table, i, "the same prompt, chosen and rejected as another pair", twin=table.name(twin)))
        return np.sort(best)

    def _consistent(self, table: FactTable, left: Ints, refuse: Refuse) -> Ints:
        said = _among(table, left)
        for i in map(int, left[said]):
            refuse(_refusal(table, i, "another pair says the opposite of the same prompt"))
        return left[~said]

    def _capped(self, table: FactTable, left: Ints, refuse: Refuse) -> Ints:
        kept: list[Ints] = []
        columns = {name: table.column(name) for name in ("kind", "depth", "confidence", "gap")}
        for members in _groups(table, left):
            own = {name: column[members] for name, column in columns.items()}
            kept.append(np.array(self._cap_group(table, members, own, refuse), np.int64))
        return np.sort(np.concatenate(kept)) if kept else left

    def _cap_group(self, table: FactTable, members: Ints, own: Mapping[str, NDArray[Any]], refuse: Refuse) -> list[int]:
        best = np.lexsort((-own["gap"], -own["confidence"]))
        order, kinds, depths = members[best].tolist(), own["kind"][best].tolist(), own["depth"][best].tolist()
        queues = [[at for at, kind in enumerate(kinds) if kind == number][::-1] for number in range(len(KINDS))]
        kept: list[int] = []
        taken: dict[int, int] = {}
        while any(queues):
            for queue in queues:
                while queue:
                    at = queue.pop()
                    i, depth = order[at], depths[at]
                    if len(kept) >= self.per_task:
                        refuse(_refusal(table, i, f"more than {self.per_task} pairs of its task"))
                    elif taken.get(depth, 0) >= self.per_depth:
                        refuse(_refusal(table, i, f"more than {self.per_depth} pairs of its task and depth"))
                    else:
                        taken[depth] = taken.get(depth, 0) + 1
                        kept.append(i)
                        break
        return kept

    def _length_matched(self, table: FactTable, left: Ints, refuse: Refuse) -> tuple[Ints, int]:
        """Drop pairs of the side that carries the mean, from the bin of the largest |Δ| down, the least sure first.

        Return the pairs that are kept, and how many it would have dropped where that was too much.
        """
        delta = table.delta(left)
        widest = max(int(np.abs(delta).max(initial=0)), 1)
        bin_ = np.minimum(self.bins - 1, self.bins * np.abs(delta) // widest)
        order = np.lexsort((table.column("gap", left), table.column("confidence", left), -bin_))
        length = table.column("chosen_length", left).astype(np.int64) + table.column("rejected_length", left)
        lengths = _Lengths(delta[order], length[order], self.max_length_gap)
        lengths.match()
        dropped = len(left) - int(lengths.kept.sum())
        if dropped > self.most_dropped * len(left):
            return left, dropped
        reason = f"length matching: |mean Δ| of all pairs would exceed {self.max_length_gap:.0%} of the mean length"
        for at in map(int, np.flatnonzero(~lengths.kept)):
            refuse(_refusal(table, int(left[order[at]]), reason, delta=int(lengths.delta[at])))
        return np.sort(left[order[lengths.kept]]), 0


class _Lengths:
    """The pairs still kept while lengths are matched, with the sums that the condition is on.

    Args:
        delta: int [n], how much longer each pair's chosen side is, in the order in which pairs are dropped.
        length: int [n], of both sides together.
        share: Greatest |mean Δ| as a share of the mean length of a side.
    """

    def __init__(self, delta: Ints, length: Ints, share: float) -> None:
        self.delta = delta
        self.kept = np.ones(len(delta), bool)
        self._length = length
        self._share = share
        self._left = len(delta)
        self._delta_sum = int(delta.sum())
        self._length_sum = int(length.sum())

    def match(self) -> None:
        """Drop until the lengths are even, or until no drop would bring the mean nearer to zero."""
        while self._uneven:
            size = self._left
            self._drop_without_tipping()
            if self._left == size:
                nearer = np.abs(self._delta_sum - self.delta) < abs(self._delta_sum)
                last = np.flatnonzero(nearer & self.kept)[:1].tolist()
                if not last:
                    break
                self._drop(last[0])

    @property
    def _uneven(self) -> bool:
        # |mean Δ| > share · mean length of a side; both means are over the same pairs, so their number cancels.
        return abs(self._delta_sum) > self._share * self._length_sum / 2 and self._left > 1

    def _drop_without_tipping(self) -> None:
        """Drop, in order, each pair that brings the mean nearer to zero and does not tip it to the other side."""
        for start in range(0, len(self.delta), _AT_ONCE):
            part = self.delta[start : start + _AT_ONCE]
            # The sum only shrinks, so what does not fit now does not fit later in this round.
            fits = self.kept[start : start + _AT_ONCE] & (part * np.sign(self._delta_sum) > 0)
            fits &= np.abs(part) <= abs(self._delta_sum)
            for at in (np.flatnonzero(fits) + start).tolist():
                if not self._uneven:
                    return
                if abs(int(self.delta[at])) <= abs(self._delta_sum):
                    self._drop(at)

    def _drop(self, at: int) -> None:
        self.kept[at] = False
        self._left -= 1
        self._delta_sum -= int(self.delta[at])
        self._length_sum -= int(self._length[at])


def balance(pairs: Sequence[PreferencePair], rules: Balance) -> tuple[list[PreferencePair], list[Refusal]]:
    """Return the pairs that are kept, with their weights, in the order given, and why the others were refused."""
    selection = rules.select([facts_of(pair) for pair in pairs])
    kept = [replace(pairs[i], weight=w) for i, w in zip(selection.kept, selection.weights, strict=True)]
    return kept, list(selection.refusals)


def _refusal(table: FactTable, i: int, reason: str, **facts: object) -> Refusal:
    return Refusal("pair", table.name(i), reason, {"pair_kind": table.kind(i), **facts})


def _among(table: FactTable, left: Ints) -> NDArray[np.bool_]:
    """Return bool [n]: whether another of these pairs says the opposite."""
    backward = table.key("backward", 0)[left]
    # By the first half of the keys almost all are sorted out; the whole is compared of the few that are left.
    known = np.sort(table.key("forward", 0)[left])
    maybe = np.zeros(len(left), bool)
    for start in range(0, len(left), _AT_ONCE):
        part = backward[start : start + _AT_ONCE]
        at = np.minimum(np.searchsorted(known, part), len(known) - 1)
        maybe[start : start + _AT_ONCE] = known[at] == part
    found = np.flatnonzero(maybe)
    if len(found):
        wanted = np.unique(backward[found])
        forward = table.key("forward", 0)[left]
        at = np.minimum(np.searchsorted(wanted, forward), len(wanted) - 1)
        near = np.flatnonzero(wanted[at] == forward)
        said = set(zip(forward[near].tolist(), table.key("forward", 1)[left[near]].tolist(), strict=True))
        ends = table.key("backward", 1)[left[found]]
        maybe[found] = [key in said for key in zip(backward[found].tolist(), ends.tolist(), strict=True)]
    return maybe


def _groups(table: FactTable, left: Ints) -> Iterator[Ints]:
    """Yield the members of each group, ascending; groups in the order of their first members."""
    if not len(left):
        return
    _, first, inverse = np.unique(table.column("group", left), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    number = rank[inverse.reshape(-1)]
    order = np.argsort(number, kind="stable")
    ends = np.flatnonzero(np.diff(number[order])) + 1
    for start, end in zip([0, *ends.tolist()], [*ends.tolist(), len(left)], strict=True):
        yield left[order[start:end]]
