"""Balance: the rules that hold for all pairs together, against doubles, contradictions, and tasks that weigh too much.

All of it works on the columns of a `FactTable`, so that the pairs themselves can wait on disk. docs/pairs.md has the
rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offline_agent.preferences.dataset.candidates import KINDS, FactTable
from offline_agent.preferences.records import Refusal
from offline_agent.preferences.settings import PAIRS, PairRules

Ints = NDArray[np.int64]
Refuse = Callable[[Refusal], object]
"""Takes each refusal as soon as it is known."""

_AT_ONCE = 1 << 16


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
        rules: The keys. The kinds take turns at a task's pairs, so that none crowds the others out.
        most_dropped: Largest share of the pairs that length matching may drop; where it would drop more, the better
            sides of these tasks are the shorter (or longer) ones by nature, and it drops none.
        bins: Number of length bins; those of the largest |Δ| are thinned first.
    """

    def __init__(self, rules: PairRules = PAIRS, *, bins: int = 8, most_dropped: float = 0.5) -> None:
        self.rules = rules
        self.bins = bins
        self.most_dropped = most_dropped

    def choose(self, table: FactTable, refuse: Refuse) -> WeightedPairs:
        """Return the pairs that are kept after the rules on doubles, contradictions, caps and lengths, in this order.

        Args:
            table: The facts of all pairs.
            refuse: Takes why each of the others was refused, in the order of the rules.
        """
        left = self._consistent(table, self._once(table, refuse), refuse)
        left = self._capped(table, left, refuse)
        left, unmatched = self._length_matched(table, left, refuse)
        _, group, counts = np.unique(table.facts["group"][left], return_inverse=True, return_counts=True)
        weights = 1 / np.sqrt(counts[group.reshape(-1)])
        return WeightedPairs(left, weights, unmatched, bool(table.delta(left).sum() > 0))

    def _once(self, table: FactTable, refuse: Refuse) -> Ints:
        """Keep the surest of those that say the same, the first one among equals."""
        digests = table.facts["digest"]
        order = np.lexsort((-table.facts["confidence"], digests))
        first = np.ones(len(order), bool)  # of a run of equal ones
        first[1:] = digests[order[1:]] != digests[order[:-1]]
        best = order[first]
        twin_of = best[np.cumsum(first) - 1]
        twins = sorted(zip(order[~first].tolist(), twin_of[~first].tolist(), strict=True))
        for i, twin in twins:
            reason = "the same prompt, chosen and rejected as another pair"
            refuse(table.refusal(i, reason, twin=table.names[twin]))
        return np.sort(best)

    def _consistent(self, table: FactTable, left: Ints, refuse: Refuse) -> Ints:
        said = np.isin(table.facts["backward"][left], table.facts["forward"][left])
        for i in left[said].tolist():
            refuse(table.refusal(i, "another pair says the opposite of the same prompt"))
        return left[~said]

    def _capped(self, table: FactTable, left: Ints, refuse: Refuse) -> Ints:
        groups: dict[int, list[int]] = {}
        for i, group in zip(left.tolist(), table.facts["group"][left].tolist(), strict=True):
            groups.setdefault(group, []).append(i)
        kept = [i for members in groups.values() for i in self._cap_group(table, np.array(members), refuse)]
        return np.array(sorted(kept), np.int64)

    def _cap_group(self, table: FactTable, members: Ints, refuse: Refuse) -> list[int]:
        own = table.facts[members]
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
                    if len(kept) >= self.rules.per_task:
                        refuse(table.refusal(i, f"more than {self.rules.per_task} pairs of its task"))
                    elif taken.get(depth, 0) >= self.rules.per_depth:
                        refuse(table.refusal(i, f"more than {self.rules.per_depth} pairs of its task and depth"))
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
        own = table.facts[left]
        order = np.lexsort((own["gap"], own["confidence"], -bin_))
        length = own["chosen_length"].astype(np.int64) + own["rejected_length"]
        lengths = _Lengths(delta[order], length[order], self.rules.length_tolerance)
        lengths.match()
        dropped = len(left) - int(lengths.kept.sum())
        if dropped > self.most_dropped * len(left):
            return left, dropped
        most = self.rules.length_tolerance
        reason = f"length matching: |mean Δ| of all pairs would exceed {most:.0%} of the mean length"
        for at in map(int, np.flatnonzero(~lengths.kept)):
            refuse(table.refusal(int(left[order[at]]), reason, delta=int(lengths.delta[at])))
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
