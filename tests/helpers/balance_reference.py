"""The rules for all pairs together, said plainly over lists: what `preferences.balance` has to agree with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.dataset.candidates import FactMaker, FactTable, PairFacts
from offline_agent.preferences.records import PreferencePair, Refusal

KINDS = ("step", "trajectory", "hindsight", "minimal")


class Selection(NamedTuple):
    kept: tuple[int, ...]
    weights: tuple[float, ...]
    refusals: tuple[Refusal, ...]


def chosen(rules: Balance, pairs: Sequence[PairFacts]) -> Selection:
    """Return what the rules themselves choose."""
    refusals: list[Refusal] = []
    found = rules.choose(FactTable.of(pairs), refusals.append)
    return Selection(tuple(found.kept.tolist()), tuple(found.weights.tolist()), tuple(refusals))


def balanced(rules: Balance, pairs: Sequence[PreferencePair]) -> tuple[list[PreferencePair], list[Refusal]]:
    """Return the pairs that are kept, with their weights, and why the others were refused."""
    found = chosen(rules, [facts_of(pair) for pair in pairs])
    kept = [replace(pairs[i], weight=weight) for i, weight in zip(found.kept, found.weights, strict=True)]
    return kept, list(found.refusals)


def facts_of(pair: PreferencePair) -> PairFacts:
    return FactMaker().facts_of(pair)


def delta(pair: PairFacts) -> int:
    return pair.chosen_length - pair.rejected_length


def mean_length_gap(pairs: Sequence[PairFacts]) -> float:
    """Return |mean Δ| as a share of the mean length of a side; 0 for no pairs."""
    length = sum(pair.chosen_length + pair.rejected_length for pair in pairs) / 2
    return abs(sum(map(delta, pairs))) / length if length else 0.0


def select(rules: Balance, pairs: Sequence[PairFacts]) -> Selection:
    refusals: list[Refusal] = []

    def refuse(i: int, reason: str, **facts: object) -> None:
        refusals.append(Refusal("pair", pairs[i].name, reason, {"pair_kind": pairs[i].kind, **facts}))

    left = _consistent(pairs, _once(pairs, refuse), refuse)
    left = _length_matched(rules, pairs, _capped(rules, pairs, left, refuse), refuse)
    counts = Counter(pairs[i].group for i in left)
    weights = tuple(1 / math.sqrt(counts[pairs[i].group]) for i in left)
    return Selection(tuple(left), weights, tuple(refusals))


def _once(pairs: Sequence[PairFacts], refuse: Callable[..., None]) -> list[int]:
    best: dict[bytes, int] = {}
    for i, pair in enumerate(pairs):
        other = best.get(pair.digest)
        if other is None or pair.confidence > pairs[other].confidence:
            best[pair.digest] = i
    kept = set(best.values())
    for i, pair in enumerate(pairs):
        if i not in kept:
            refuse(i, "the same prompt, chosen and rejected as another pair", twin=pairs[best[pair.digest]].name)
    return sorted(kept)


def _consistent(pairs: Sequence[PairFacts], left: list[int], refuse: Callable[..., None]) -> list[int]:
    said = {pairs[i].forward for i in left}
    for i in left:
        if pairs[i].backward in said:
            refuse(i, "another pair says the opposite of the same prompt")
    return [i for i in left if pairs[i].backward not in said]


def _capped(rules: Balance, pairs: Sequence[PairFacts], left: list[int], refuse: Callable[..., None]) -> list[int]:
    kept: list[int] = []
    for group in dict.fromkeys(pairs[i].group for i in left):
        members = [i for i in left if pairs[i].group == group]
        members.sort(key=lambda i: (-pairs[i].confidence, -pairs[i].gap, i))
        queues = [[i for i in members if pairs[i].kind == kind] for kind in KINDS]
        own: list[int] = []
        depths: Counter[int] = Counter()
        while any(queues):
            for queue in queues:
                while queue:
                    i = queue.pop(0)
                    if len(own) >= rules.rules.per_task:
                        refuse(i, f"more than {rules.rules.per_task} pairs of its task")
                    elif depths[pairs[i].depth] >= rules.rules.per_depth:
                        refuse(i, f"more than {rules.rules.per_depth} pairs of its task and depth")
                    else:
                        depths[pairs[i].depth] += 1
                        own.append(i)
                        break
        kept += own
    return sorted(kept)


def _length_matched(
    rules: Balance, pairs: Sequence[PairFacts], left: list[int], refuse: Callable[..., None]
) -> list[int]:
    widest = max((abs(delta(pairs[i])) for i in left), default=0)

    def order(i: int) -> tuple[int, float, float, int]:
        bin_ = min(rules.bins - 1, rules.bins * abs(delta(pairs[i])) // max(widest, 1))
        return -bin_, pairs[i].confidence, pairs[i].gap, i

    kept, queue = set(left), sorted(left, key=order)

    def uneven() -> bool:
        length = sum(pairs[i].chosen_length + pairs[i].rejected_length for i in kept)
        return abs(total()) > rules.rules.length_tolerance * length / 2 and len(kept) > 1

    def total() -> int:
        return sum(delta(pairs[i]) for i in kept)

    while uneven():
        size = len(kept)
        for i in queue:
            longer = delta(pairs[i])
            if i in kept and uneven() and longer * total() > 0 and abs(longer) <= abs(total()):
                kept.discard(i)
        if len(kept) == size:
            nearer = [i for i in queue if i in kept and abs(total() - delta(pairs[i])) < abs(total())]
            if not nearer:
                break
            kept.discard(nearer[0])
    if len(left) - len(kept) > rules.most_dropped * len(left):
        return left
    most = rules.rules.length_tolerance
    reason = f"length matching: |mean Δ| of all pairs would exceed {most:.0%} of the mean length"
    for i in queue:
        if i not in kept:
            refuse(i, reason, delta=delta(pairs[i]))
    return [i for i in left if i in kept]
