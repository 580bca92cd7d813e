"""Pairs and trajectories that wait on disk, tree by tree, until it is known which of them are kept."""

from __future__ import annotations

import io
import pickle
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from offline_agent.preferences.dataset.balance import Balance, Refuse
from offline_agent.preferences.dataset.candidates import FactTable, PairFacts
from offline_agent.records import Context, PreferencePair, Trajectory
from offline_agent.store.scratch_files import PieceFile, TextFile


class Same:
    """Gives equal things back as one: renderers keep what they made of tool schemas by the object that these are."""

    def __init__(self) -> None:
        self._recent: deque[Any] = deque(maxlen=4)

    def of(self, value: Any) -> Any:
        """Return a thing of late that equals the value and is of its type, else the value."""
        for known in self._recent:
            if known is value or (type(known) is type(value) and known == value):
                return known
        self._recent.append(value)
        return value


Kept = Sequence[tuple[int, float]]
"""Which of a tree's pairs are kept, and their weights."""


class PairShelf:
    """The pairs of all trees: themselves and their names on disk, what balancing needs of them in memory.

    Args:
        folder: The run directory; the files in it are removed by `close`, or when the run directory is opened again.
    """

    def __init__(self, folder: Path) -> None:
        self._pairs = PieceFile(folder, "pairs")
        self._names = TextFile(folder, "names")
        self._facts = FactTable(self._names.__getitem__)
        self._counts = array("L")  # pairs of each tree that has any

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._facts)

    def add(self, facts: Sequence[PairFacts], packed: bytes) -> None:
        """Put there the pairs of one tree: what balancing needs of each, and all of them as `pack` packs them.

        Raises:
            DataError: The disk refused.
        """
        for one in facts:
            self._names.add(one.name)
            self._facts.add(one)
        if facts:
            self._counts.append(len(facts))
            self._pairs.add(packed)

    def choose(self, rules: Balance, refuse: Refuse) -> Iterator[tuple[bytes, Kept]]:
        """Yield the packed pairs of each tree of which some are kept, in the order in which they were put there.

        Args:
            rules: Which are kept.
            refuse: Takes why each of the others was refused; all of that before the first pairs are yielded.
        """
        choice = rules.choose(self._facts, refuse)
        start = at = 0
        for count, packed in zip(self._counts, self._pairs.read(), strict=True):
            first = at
            while at < len(choice.kept) and choice.kept[at] < start + count:
                at += 1
            if at > first:
                yield packed, [(int(choice.kept[i]) - start, float(choice.weights[i])) for i in range(first, at)]
            start += count

    def close(self) -> None:
        """Remove the files."""
        self._pairs.close()
        self._names.close()


def kept_of(pairs: Sequence[PreferencePair], kept: Kept) -> Iterator[PreferencePair]:
    """Yield those of a tree's pairs that are kept, weighted."""
    for number, weight in kept:
        yield replace(pairs[number], weight=weight)


def pack(items: Sequence[PreferencePair] | Sequence[Trajectory]) -> bytes:
    """Return what one tree gave as bytes, each history that items share once; of nothing, none.

    What a renderer or a policy hung on histories is left out.
    """
    if not items:
        return b""
    buffer = io.BytesIO()
    # Parents come first, so that the pickler meets each history one turn deep, however long the episode is.
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump((_contexts(items), list(items)))
    return buffer.getvalue()


def unpack(packed: bytes, same: Same) -> list[Any]:
    """Return what was packed; tool schemas are those that `same` has seen, where they equal them."""
    contexts, items = pickle.loads(packed) if packed else ((), [])
    for context in contexts:
        context.tools = same.of(context.tools)
    return cast("list[Any]", items)


def _contexts(items: Iterable[PreferencePair | Trajectory]) -> list[Context]:
    known: dict[int, Context] = {}
    for item in items:
        last = item.prefix if isinstance(item, PreferencePair) else item.context
        known.update((id(context), context) for context in last.lineage())
    return list(known.values())


class _Pickler(pickle.Pickler):
    """Leaves out of a history what a renderer or a policy hung on it: it can hold a model."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not Context:
            return NotImplemented
        return Context, (obj.task, obj.system, obj.tools, obj.observation, obj.parent, obj.action, obj.role)
