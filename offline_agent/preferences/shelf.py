"""Pairs and trajectories that wait on disk, tree by tree, until it is known which of them are kept."""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from offline_agent._store.spill import Spill, Texts
from offline_agent.preferences.balance import Balance, Choice, Refuse
from offline_agent.preferences.facts import FactMaker, FactTable
from offline_agent.records import Context, PreferencePair, Trajectory

T = TypeVar("T", PreferencePair, Trajectory)


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


class Shelf(Generic[T]):
    """What trees gave, in the order in which it was put there; what one tree gave is kept and read together.

    Histories that items of a tree share are shared again when they are read; what a renderer or a policy hung on
    them is not kept.

    Args:
        folder: The run directory; the file in it is removed by `close`, or when the run directory is opened again.
        name: Of the file, for messages.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._spill = Spill(folder, name)
        self._count = 0

    def __len__(self) -> int:
        """Return the number of items."""
        return self._count

    def add(self, items: Sequence[T]) -> None:
        """Put there what one tree gave. Raises DataError where the disk refused."""
        if items:
            self._count += len(items)
            self._spill.add(_pack(items))

    def trees(self) -> Iterator[list[T]]:
        """Yield what each tree gave; a tree that gave nothing is left out."""
        same = Same()
        for piece in self._spill.read():
            contexts, items = pickle.loads(piece)
            for context in contexts:
                context.tools = same.of(context.tools)
            yield items

    def __iter__(self) -> Iterator[T]:
        """Yield the items."""
        for items in self.trees():
            yield from items

    def close(self) -> None:
        """Remove the file."""
        self._spill.close()


class PairShelf:
    """The pairs of all trees: themselves and their names on disk, what balancing needs of them in memory.

    Args:
        folder: The run directory; see `Shelf`.
    """

    def __init__(self, folder: Path) -> None:
        self._pairs: Shelf[PreferencePair] = Shelf(folder, "pairs")
        self._names = Texts(folder, "names")
        self._facts = FactTable(self._names.__getitem__)
        self._maker = FactMaker()

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._facts)

    def add(self, pairs: Sequence[PreferencePair]) -> None:
        """Put there the pairs of one tree. Raises DataError where the disk refused."""
        for pair in pairs:
            facts = self._maker.facts_of(pair)
            self._names.add(facts.name)
            self._facts.add(facts)
        self._maker.forget()
        self._pairs.add(pairs)

    def choose(self, rules: Balance, refuse: Refuse) -> Iterator[PreferencePair]:
        """Yield the pairs that are kept, weighted, in the order in which they were put there.

        Args:
            rules: Which are kept.
            refuse: Takes why each of the others was refused; all of that before the first pair is yielded.
        """
        choice = rules.choose(self._facts, refuse)
        yield from self._kept(choice)

    def close(self) -> None:
        """Remove the files."""
        self._pairs.close()
        self._names.close()

    def _kept(self, choice: Choice) -> Iterator[PreferencePair]:
        start = at = 0
        for pairs in self._pairs.trees():
            while at < len(choice.kept) and choice.kept[at] < start + len(pairs):
                yield replace(pairs[int(choice.kept[at]) - start], weight=float(choice.weights[at]))
                at += 1
            start += len(pairs)


def _pack(items: Sequence[PreferencePair] | Sequence[Trajectory]) -> bytes:
    buffer = io.BytesIO()
    # Parents come first, so that the pickler meets each history one turn deep, however long the episode is.
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump((_contexts(items), list(items)))
    return buffer.getvalue()


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
