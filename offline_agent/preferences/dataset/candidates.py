"""What balancing needs to know of a pair, one pair at a time or a million of them in columns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_agent.records import Context, PairKind, PreferencePair, Step

KINDS: tuple[PairKind, ...] = ("step", "trajectory", "hindsight", "minimal")

_DIGEST = 16
_BLOCK = 1 << 12
_KEYS = np.dtype([("digest", np.uint64, (2,)), ("forward", np.uint64, (2,)), ("backward", np.uint64, (2,))])
_FIGURES = np.dtype(
    [
        ("kind", np.uint8),
        ("group", np.uint64),  # of the group's name
        ("depth", np.int32),
        ("chosen_length", np.int32),
        ("rejected_length", np.int32),
        ("confidence", np.float64),
        ("gap", np.float64),
    ]
)


@dataclass(frozen=True, slots=True)
class PairFacts:
    """The few figures of a pair that balancing needs, so that the pair itself can wait on disk.

    Attributes:
        name: For refusals.
        kind: Which rule made it.
        group: The tree it is from, else its task: what the caps per task count.
        depth: Number of actions in the shared history.
        digest: Of (prompt, chosen, rejected) as token ids, or as text where there are none; at most 16 bytes.
        forward, backward: Of (prompt, better, worse) as canonical actions, and of the same pair turned round.
        chosen_length, rejected_length: Trainable tokens of each side, or characters where there are none.
        confidence: As the pair's; 0 where that is not known, so that the sure ones go first.
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


class FactTable:
    """The facts of many pairs in columns: 85 bytes a pair, whatever the pairs hold. Names are kept elsewhere.

    Groups are told apart by 64 bits of a hash of their names: two of a million meet once in 40 million runs.

    Args:
        name: Returns the name of pair i, for refusals; asked only for pairs that are refused, and their twins.
    """

    def __init__(self, name: Callable[[int], str]) -> None:
        self.name = name
        self._keys: list[NDArray[Any]] = []  # in blocks, so that growing copies nothing
        self._figures: list[NDArray[Any]] = []
        self._count = 0
        self._group: tuple[str, int] = ("", _group(""))

    def __len__(self) -> int:
        """Return the number of pairs."""
        return self._count

    def add(self, facts: PairFacts) -> None:
        """Add one pair's facts, its name excepted."""
        at = self._count % _BLOCK
        if not at:
            self._keys.append(np.zeros(_BLOCK, _KEYS))
            self._figures.append(np.zeros(_BLOCK, _FIGURES))
        if facts.group != self._group[0]:  # pairs come tree by tree
            self._group = (facts.group, _group(facts.group))
        self._keys[-1][at] = _words(facts.digest), _words(facts.forward), _words(facts.backward)
        self._figures[-1][at] = (
            KINDS.index(facts.kind), self._group[1], facts.depth, facts.chosen_length, facts.rejected_length,
            facts.confidence, facts.gap,
        )  # fmt: skip
        self._count += 1

    def kind(self, i: int) -> PairKind:
        """Return which rule made pair i."""
        return KINDS[int(self._figures[i // _BLOCK]["kind"][i % _BLOCK])]

    def column(self, name: str, at: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Return a copy of a column, a field of `PairFacts`, of all pairs or of those at the positions given."""
        kind, blocks = (_KEYS, self._keys) if name in (_KEYS.names or ()) else (_FIGURES, self._figures)
        column = np.concatenate([block[name] for block in blocks] or [np.empty(0, kind)[name]])[: self._count]
        return column if at is None else column[at]

    def key(self, name: str, word: int) -> NDArray[np.uint64]:
        """Return a copy of the first (0) or second (1) 64 bits of `digest`, `forward` or `backward` of all pairs."""
        return np.concatenate([block[name][:, word] for block in self._keys] or [np.empty(0, np.uint64)])[: self._count]

    def let_go_of_keys(self) -> None:
        """Free `digest`, `forward` and `backward`, more than half of the memory; they cannot be asked for again."""
        self._keys.clear()

    def delta(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how much longer the chosen side of each of these pairs is; int [n]."""
        chosen, rejected = self.column("chosen_length", at), self.column("rejected_length", at)
        return chosen.astype(np.int64) - rejected

    @classmethod
    def of(cls, pairs: Sequence[PairFacts]) -> FactTable:
        """Return the table of pairs whose facts are all in memory."""
        table = cls(lambda i: pairs[i].name)
        for facts in pairs:
            table.add(facts)
        return table


class FactMaker:
    """Makes facts of pairs; what pairs of one tree share (tools, histories) is digested once for all of them.

    Call `forget` between trees: what is remembered hangs on objects of the tree.
    """

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[Context, str]] = {}

    def forget(self) -> None:
        """Let go of the histories seen so far."""
        self._prompts.clear()

    def facts_of(self, pair: PreferencePair) -> PairFacts:
        """Return the figures of a pair that balancing needs."""
        keys = [[step.key for step in side] for side in (pair.chosen, pair.rejected)]
        prompt = self._prompt(pair.prefix)
        ids = all(step.action.token_ids is not None for step in (*pair.chosen, *pair.rejected))
        task_id = pair.prefix.task.task_id
        return PairFacts(
            f"{task_id}/{pair.kind}/node {pair.node_id}/edges {pair.chosen_edge}>{pair.rejected_edge}",
            pair.kind,
            task_id if pair.tree_id is None else pair.tree_id,
            pair.prefix.depth,
            _digest([prompt, _content(pair.chosen), _content(pair.rejected)]),
            _digest([prompt, *keys]),
            _digest([prompt, *keys[::-1]]),
            _length(pair.chosen, ids),
            _length(pair.rejected, ids),
            pair.confidence or 0.0,
            pair.q_chosen - pair.q_rejected,
        )

    def _prompt(self, prefix: Context) -> str:
        """Return a digest of a history: of its parent's and its last turn, or of what the episode started with."""
        new: list[Context] = []
        node: Context | None = prefix
        while node is not None and id(node) not in self._prompts:
            new.append(node)
            node = node.parent
        digest = "" if node is None else self._prompts[id(node)][1]
        for node in reversed(new):
            turn = [node.action.text if node.action else None, node.role, node.observation]
            before = digest if node.parent else [node.system, [str(schema) for schema in node.tools]]
            digest = _digest([before, turn]).hex()
            self._prompts[id(node)] = node, digest  # the history is kept, so that its id is not given to another
        return digest


def facts_of(pair: PreferencePair) -> PairFacts:
    """Return the figures of a pair that balancing needs."""
    return FactMaker().facts_of(pair)


def mean_length_gap(pairs: Iterable[PairFacts]) -> float:
    """Return |mean Δ| as a share of the mean length of a side; 0 for no pairs."""
    pairs = list(pairs)
    length = sum(pair.chosen_length + pair.rejected_length for pair in pairs) / 2
    return abs(sum(pair.delta for pair in pairs)) / length if length else 0.0


def _words(digest: bytes) -> tuple[int, int]:
    if len(digest) > _DIGEST:
        raise ValueError(f"a digest has at most {_DIGEST} bytes, got {len(digest)}")
    whole = digest.ljust(_DIGEST, b"\0")
    return int.from_bytes(whole[:8], "big"), int.from_bytes(whole[8:], "big")


def _group(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _content(steps: Sequence[Step]) -> list[object]:
    """What a trainer sees of a side: the turns, and the answers between them."""
    turns = [list(s.action.token_ids) if s.action.token_ids is not None else s.action.text for s in steps]
    answers = [step.observation for step in steps[:-1]]
    return [turns, answers]


def _length(steps: Sequence[Step], ids: bool) -> int:
    if ids:
        return sum(len(step.action.token_ids or ()) for step in steps)
    return sum(len(step.action.text) for step in steps)


def _digest(value: object) -> bytes:
    return hashlib.blake2b(_text(value).encode(), digest_size=_DIGEST).digest()


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
