"""Candidate pairs: what balancing reads of them in memory, the pairs themselves and their names on disk.

The facts of one tree's pairs are an array of `FACTS`, and as many pairs in the same order. Trees are added one by one;
`balance.Balance` chooses by facts; the pairs that are kept are read back in the same order.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_agent.preferences.records import PairKind, PreferencePair, Refusal
from offline_agent.records import Context, Step
from offline_agent.store.scratch_files import PieceFile, TextFile

KINDS: tuple[PairKind, ...] = ("step", "trajectory", "hindsight", "minimal")

_DIGEST = 16
FACTS = np.dtype([
    ("kind", "u1"), ("group", "u8"), ("depth", "i4"),
    ("digest", f"S{_DIGEST}"), ("forward", f"S{_DIGEST}"), ("backward", f"S{_DIGEST}"),
    ("chosen_length", "i4"), ("rejected_length", "i4"), ("confidence", "f8"), ("gap", "f8"),
])  # fmt: skip
"""Columns of `PairFacts`, 85 bytes a pair; `kind` is its number in `KINDS`, `group` 64 bits of a hash of its name.

Two of a million groups have the same hash once in 40 million runs.
"""


class PairFacts(NamedTuple):
    """The few figures of a pair that balancing needs.

    Attributes:
        name: For refusals.
        kind: The rule that made it.
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


class Names(Protocol):
    """The names of pairs, by number."""

    def __getitem__(self, number: int, /) -> str:
        """Return a name."""


class FactTable(NamedTuple):
    """The facts of many pairs.

    Attributes:
        facts: Array of `FACTS`, one a pair.
        names: Read for pairs that are refused, and their twins.
    """

    facts: NDArray[Any]
    names: Names

    @classmethod
    def of(cls, pairs: Iterable[PairFacts]) -> FactTable:
        """Return the table of pairs whose facts are all in memory."""
        pairs = list(pairs)
        rows = [(KINDS.index(pair.kind), _group(pair.group), *pair[3:]) for pair in pairs]
        return cls(np.array(rows, FACTS), [pair.name for pair in pairs])

    def delta(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how much longer the chosen side of each of these pairs is; int [n]."""
        return self.facts["chosen_length"][at].astype(np.int64) - self.facts["rejected_length"][at]

    def refusal(self, i: int, reason: str, **facts: object) -> Refusal:
        """Return the refusal of pair i."""
        kind = KINDS[int(self.facts["kind"][i])]
        return Refusal("pair", self.names[i], reason, {"pair_kind": kind, **facts})


class CandidateStore:
    """The candidate pairs of all trees: their facts in memory, the pairs and their names in temporary files.

    Args:
        folder: The run directory; the files in it are removed by `close`, or when the run directory is opened again.
    """

    def __init__(self, folder: Path) -> None:
        self._pairs = PieceFile(folder, "pairs")
        self._names = TextFile(folder, "names")
        self._facts = bytearray()
        self._counts = array("L")  # pairs of each tree that has any

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._names)

    @property
    def table(self) -> FactTable:
        """The facts of all pairs; none may be added while it is held."""
        return FactTable(np.frombuffer(self._facts, FACTS), self._names)

    def add(self, facts: FactTable, pairs: bytes) -> None:
        """Add the pairs of one tree: their facts, and as many pairs in the same order, packed by `pack`.

        Raises:
            DataError: The disk refused.
        """
        count = len(facts.facts)
        if not count:
            return
        for i in range(count):
            self._names.add(facts.names[i])
        self._facts += facts.facts.tobytes()
        self._counts.append(count)
        self._pairs.add(pairs)

    def kept(self, kept: NDArray[np.int64], weights: NDArray[np.float64]) -> Iterator[PreferencePair]:
        """Yield the pairs at these positions (ascending), in order, with their weights.

        Raises:
            DataError: The file is not as it was written.
        """
        start = at = 0
        for count, packed in zip(self._counts, self._pairs.read(), strict=True):
            end = at + int(np.searchsorted(kept[at:], start + count))
            if end > at:
                pairs = unpack(packed)
                for i, weight in zip(kept[at:end].tolist(), weights[at:end].tolist(), strict=True):
                    yield replace(pairs[i - start], weight=weight)
            start, at = start + count, end

    def close(self) -> None:
        """Remove the files."""
        self._pairs.close()
        self._names.close()


def pack(pairs: Sequence[PreferencePair]) -> bytes:
    """Return pairs of one tree as bytes, without the ids that a renderer keeps in their histories."""
    # Histories go first, parents before children: a pickle that met a child first would nest as deep as its history.
    histories = {id(node): node for pair in pairs for node in pair.prefix.lineage()}
    return pickle.dumps((list(histories.values()), list(pairs)), pickle.HIGHEST_PROTOCOL)


def unpack(packed: bytes) -> list[PreferencePair]:
    """Return the pairs that `pack` packed."""
    pairs: list[PreferencePair] = pickle.loads(packed)[1]
    return pairs


class FactMaker:
    """Makes facts of pairs; what pairs of one tree share (tools, histories) is digested once for all of them.

    Use one for each tree: what is remembered hangs on objects of the tree.
    """

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[Context, str]] = {}

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
            turn: list[object] = [node.action.text if node.action else None, node.role, node.observation]
            if node.recorded is not None:
                turn.append(node.recorded)
            before = digest if node.parent else [node.system, [str(schema) for schema in node.tools]]
            digest = _digest([before, turn]).hex()
            self._prompts[id(node)] = node, digest  # the history is kept, so that its id is not given to another
        return digest


def _group(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _content(steps: Sequence[Step]) -> list[object]:
    """Return the part of a side that a trainer sees: the turns, and the answers between them."""
    turns = [list(s.action.token_ids) if s.action.token_ids is not None else s.action.text for s in steps]
    answers = [step.observation if step.recorded is None else step.recorded for step in steps[:-1]]
    return [turns, answers]


def _length(steps: Sequence[Step], ids: bool) -> int:
    if ids:
        return sum(len(step.action.token_ids or ()) for step in steps)
    return sum(len(step.action.text) for step in steps)


def _digest(value: object) -> bytes:
    return hashlib.blake2b(_text(value).encode(), digest_size=_DIGEST).digest()


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
