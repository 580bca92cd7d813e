"""What pairs are kept of all that were found: no doubles, no contradictions, no task, depth or length too heavy."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from offline_agent.errors import ConfigError
from offline_agent.preferences.refusals import Refusal
from offline_agent.records import Context, PairKind, PreferencePair, Step

KINDS: tuple[PairKind, ...] = ("step", "trajectory", "hindsight", "minimal")


@dataclass(frozen=True, slots=True)
class PairFacts:
    """The few figures of a pair that balancing needs, so that the pair itself can wait on disk.

    Attributes:
        name: For refusals.
        kind: Which rule made it.
        group: The tree it is from, else its task: what the caps per task count.
        depth: Number of actions in the shared history.
        digest: Of (prompt, chosen, rejected) as token ids, or as text where there are none.
        forward, backward: Of (prompt, better, worse) as canonical actions, and of the same pair turned round.
        chosen_length, rejected_length: Trainable tokens of each side, or characters where there are none.
        confidence: P(Q_chosen > Q_rejected).
        gap: Q_chosen − Q_rejected.
    """

    name: str
    kind: PairKind
    group: str
    depth: int
    digest: bytes
    forward: bytes
    backward: bytes
    chosen_length: int
    rejected_length: int
    confidence: float
    gap: float

    @property
    def delta(self) -> int:
        """How much longer the chosen side is."""
        return self.chosen_length - self.rejected_length


@dataclass(frozen=True, slots=True)
class Selection:
    """Which pairs are kept.

    Attributes:
        kept: int [k], positions in the list given, ascending.
        weights: float [k], 1/√(kept pairs of the task).
        refusals: Why each of the others was refused.
    """

    kept: tuple[int, ...]
    weights: tuple[float, ...]
    refusals: tuple[Refusal, ...]


def facts_of(pair: PreferencePair) -> PairFacts:
    """Return the figures of a pair that balancing needs."""
    chosen, rejected = _content(pair.chosen), _content(pair.rejected)
    keys = [[step.key for step in side] for side in (pair.chosen, pair.rejected)]
    prompt = _prompt(pair.prefix)
    ids = all(step.action.token_ids is not None for step in (*pair.chosen, *pair.rejected))
    task_id = pair.prefix.task.task_id
    group = task_id if pair.tree_id is None else pair.tree_id
    return PairFacts(
        f"{task_id}/{pair.kind}/node {pair.node_id}/edges {pair.chosen_edge}>{pair.rejected_edge}",
        pair.kind,
        group,
        pair.prefix.depth,
        _digest([prompt, chosen, rejected]),
        _digest([prompt, *keys]),
        _digest([prompt, *keys[::-1]]),
        _length(pair.chosen, ids),
        _length(pair.rejected, ids),
        pair.confidence,
        pair.q_chosen - pair.q_rejected,
    )


class Balance:
    """The rules that hold for all pairs together (algorithms.md section 4, last paragraph).

    Args:
        per_task: Most pairs of one task; the kinds take turns, so that none crowds the others out.
        per_depth: Most pairs of one task that diverge at one depth.
        max_length_gap: Greatest |mean Δ length| of chosen against rejected, as a share of the mean length of a side.
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
        self.weighted = weighted

    def select(self, pairs: Sequence[PairFacts]) -> Selection:
        """Return which pairs are kept: doubles, contradictions, caps and lengths, in this order."""
        refusals: list[Refusal] = []
        left = self._once(pairs, list(range(len(pairs))), refusals)
        left = self._consistent(pairs, left, refusals)
        left = self._capped(pairs, left, refusals)
        left = self._length_matched(pairs, left, refusals)
        counts: dict[str, int] = {}
        for i in left:
            counts[pairs[i].group] = counts.get(pairs[i].group, 0) + 1
        weights = tuple(1 / math.sqrt(counts[pairs[i].group]) if self.weighted else 1.0 for i in left)
        return Selection(tuple(left), weights, tuple(refusals))

    def _once(self, pairs: Sequence[PairFacts], left: list[int], refusals: list[Refusal]) -> list[int]:
        best: dict[bytes, int] = {}
        for i in left:
            other = best.get(pairs[i].digest)
            if other is None or pairs[i].confidence > pairs[other].confidence:
                best[pairs[i].digest] = i
        kept = set(best.values())
        for i in left:
            if i not in kept:
                twin = pairs[best[pairs[i].digest]].name
                refusals.append(_refusal(pairs[i], "the same prompt, chosen and rejected as another pair", twin=twin))
        return [i for i in left if i in kept]

    def _consistent(self, pairs: Sequence[PairFacts], left: list[int], refusals: list[Refusal]) -> list[int]:
        said = {pairs[i].forward for i in left}
        out = []
        for i in left:
            if pairs[i].backward in said:
                refusals.append(_refusal(pairs[i], "another pair says the opposite of the same prompt"))
            else:
                out.append(i)
        return out

    def _capped(self, pairs: Sequence[PairFacts], left: list[int], refusals: list[Refusal]) -> list[int]:
        groups: dict[str, list[int]] = {}
        for i in left:
            groups.setdefault(pairs[i].group, []).append(i)
        kept: list[int] = []
        for members in groups.values():
            kept += self._cap_group(pairs, members, refusals)
        return sorted(kept)

    def _cap_group(self, pairs: Sequence[PairFacts], members: list[int], refusals: list[Refusal]) -> list[int]:
        queues = {
            kind: sorted(
                (i for i in members if pairs[i].kind == kind), key=lambda i: (-pairs[i].confidence, -pairs[i].gap, i)
            )
            for kind in KINDS
        }
        kept: list[int] = []
        depths: dict[int, int] = {}
        while any(queues.values()):
            for queue in queues.values():
                while queue:
                    i = queue.pop(0)
                    depth = pairs[i].depth
                    if len(kept) >= self.per_task:
                        refusals.append(_refusal(pairs[i], f"more than {self.per_task} pairs of its task"))
                    elif depths.get(depth, 0) >= self.per_depth:
                        refusals.append(_refusal(pairs[i], f"more than {self.per_depth} pairs of its task and depth"))
                    else:
                        depths[depth] = depths.get(depth, 0) + 1
                        kept.append(i)
                        break
        return kept

    def _length_matched(self, pairs: Sequence[PairFacts], left: list[int], refusals: list[Refusal]) -> list[int]:
        """Drop pairs of the side that carries the mean, from the bin of the largest |Δ| down, the least sure first."""
        widest = max((abs(pairs[i].delta) for i in left), default=0)

        def order(i: int) -> tuple[int, float, float, int]:
            bin_ = min(self.bins - 1, self.bins * abs(pairs[i].delta) // max(widest, 1))
            return -bin_, pairs[i].confidence, pairs[i].gap, i

        lengths = _Lengths(pairs, left, self.max_length_gap)
        queue = sorted(left, key=order)
        while lengths.uneven:
            size = len(lengths.kept)
            for i in queue:
                if lengths.uneven and i in lengths.kept and lengths.helps(i, tipping=False):
                    lengths.drop(i)
            if len(lengths.kept) == size:
                last = next((i for i in queue if i in lengths.kept and lengths.helps(i, tipping=True)), None)
                if last is None:
                    break
                lengths.drop(last)
        reason = f"length matching: |mean Δ| of all pairs would exceed {self.max_length_gap:.0%} of the mean length"
        refusals += [_refusal(pairs[i], reason, delta=pairs[i].delta) for i in queue if i not in lengths.kept]
        return [i for i in left if i in lengths.kept]


class _Lengths:
    """The pairs still kept while lengths are matched, with the sums that the condition is on."""

    def __init__(self, pairs: Sequence[PairFacts], left: Sequence[int], share: float) -> None:
        self._pairs = pairs
        self._share = share
        self.kept = set(left)
        self._delta = sum(pairs[i].delta for i in left)
        self._length = sum(pairs[i].chosen_length + pairs[i].rejected_length for i in left)

    @property
    def uneven(self) -> bool:
        # |mean Δ| > share · mean length of a side; both means are over the same pairs, so their number cancels.
        return abs(self._delta) > self._share * self._length / 2 and len(self.kept) > 1

    def helps(self, i: int, tipping: bool) -> bool:
        """Whether dropping a pair brings the mean nearer to zero: without tipping it to the other side, or at all."""
        delta = self._pairs[i].delta
        if tipping:
            return abs(self._delta - delta) < abs(self._delta)
        return delta * self._delta > 0 and abs(delta) <= abs(self._delta)

    def drop(self, i: int) -> None:
        self.kept.discard(i)
        self._delta -= self._pairs[i].delta
        self._length -= self._pairs[i].chosen_length + self._pairs[i].rejected_length


def balance(pairs: Sequence[PreferencePair], rules: Balance) -> tuple[list[PreferencePair], list[Refusal]]:
    """Return the pairs that are kept, with their weights, in the order given, and why the others were refused."""
    selection = rules.select([facts_of(pair) for pair in pairs])
    kept = [replace(pairs[i], weight=w) for i, w in zip(selection.kept, selection.weights, strict=True)]
    return kept, list(selection.refusals)


def mean_length_gap(pairs: Iterable[PairFacts]) -> float:
    """Return |mean Δ| as a share of the mean length of a side; 0 for no pairs."""
    pairs = list(pairs)
    length = sum(pair.chosen_length + pair.rejected_length for pair in pairs) / 2
    return abs(sum(pair.delta for pair in pairs)) / length if length else 0.0


def _refusal(pair: PairFacts, reason: str, **facts: object) -> Refusal:
    return Refusal("pair", pair.name, reason, {"pair_kind": pair.kind, **facts})


def _content(steps: Sequence[Step]) -> list[object]:
    """What a trainer sees of a side: the turns, and the answers between them."""
    turns = [list(s.action.token_ids) if s.action.token_ids is not None else s.action.text for s in steps]
    answers = [step.observation for step in steps[:-1]]
    return [turns, answers]


def _prompt(prefix: Context) -> list[object]:
    turns = [[node.action.text if node.action else None, node.role, node.observation] for node in prefix.lineage()]
    return [prefix.system, [str(schema) for schema in prefix.tools], turns]


def _length(steps: Sequence[Step], ids: bool) -> int:
    if ids:
        return sum(len(step.action.token_ids or ()) for step in steps)
    return sum(len(step.action.text) for step in steps)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _digest(value: object) -> bytes:
    return hashlib.blake2b(_text(value).encode(), digest_size=16).digest()
