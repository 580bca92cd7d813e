"""The schedule of updates: the rows and packs of each optimizer update, deterministic in the seed and the epoch."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from offline_agent import crash_notes
from offline_agent.seeding import derive_seed
from offline_agent.training.prefix_sharing.trie import Sequence as TokenSequence
from offline_agent.training.prefix_sharing.trie import plan

if TYPE_CHECKING:
    from offline_agent.training.data.rows import PairRow, TrajectoryRow

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """The sides that must be in one forward pass: the two of a pair, or one trajectory.

    Attributes:
        name: For messages.
        index: Its place among the rows, or among the anchors.
        sides: The sequences of each: ids, and the tokens whose log-probability is wanted. It is the sum over them.
        tree, node: Units of one tree, and of one node of it, share their history.
        anchor: Whether it is a replayed trajectory beside the rows.
        row: What it was made of; None in a round.
    """

    name: str
    index: int
    sides: tuple[tuple[TokenSequence, ...], ...]
    tree: str
    node: str
    anchor: bool = False
    row: Any = None

    @property
    def sequences(self) -> tuple[TokenSequence, ...]:
        """The sequences of all sides."""
        return tuple(sequence for side in self.sides for sequence in side)

    @property
    def scored(self) -> int:
        """Number of tokens whose log-probability is wanted."""
        return sum(sum(sequence.scored) for sequence in self.sequences)

    @property
    def raw_tokens(self) -> int:
        """Number of tokens of all sequences one by one."""
        return sum(len(sequence.ids) for sequence in self.sequences)


def pair_units(rows: Sequence[PairRow]) -> list[Unit]:
    """Return one unit for each pair: its chosen side first, agent tokens after the prompt scored."""
    return [
        Unit(
            row.name,
            index,
            (
                policy_tokens(row.chosen_ids, row.chosen_mask, row.chosen_starts, row.prompt_ids),
                policy_tokens(row.rejected_ids, row.rejected_mask, row.rejected_starts, row.prompt_ids),
            ),
            tree=row.tree_id if row.tree_id is not None else f"task {row.task_id}",
            node=str(row.node_id) if row.node_id is not None else f"row {index}",
            row=row,
        )
        for index, row in enumerate(rows)
    ]


def policy_tokens(ids: Ids, mask: Ids, starts: Ids = (), prompt: Ids = ()) -> tuple[TokenSequence, ...]:
    """Return a side's sequences with the agent tokens scored, but never a first id: nothing comes before it.

    Args:
        ids, mask: int [n].
        starts: Where a sequence begins anew.
        prompt: What stands before the first one.
    """
    found = []
    for start, end in pairwise((0, *starts, len(ids))):
        before = () if start else prompt
        scored = ((0,) * len(before) + mask[start:end])[1:]
        found.append(TokenSequence(before + ids[start:end], (0, *scored)))
    return tuple(found)


def trajectory_units(rows: Sequence[TrajectoryRow], anchor: bool = False) -> list[Unit]:
    """Return one unit for each trajectory."""
    return [
        Unit(row.name, index, (side,), f"row {index}", "", anchor, row)
        for index, row in enumerate(rows)
        for side in [policy_tokens(row.input_ids, row.action_mask, row.starts)]
    ]


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer update: its number (from 0), its rows and its anchors."""

    number: int
    rows: tuple[Unit, ...]
    anchors: tuple[Unit, ...]


class UpdateSchedule(Sequence[Update]):
    """All updates of a run, made when they are asked for.

    In every epoch each row is seen once. Rows of one tree share their history, so they go together in blocks of at most
    a quarter of an update, nodes unbroken where they fit: an update sees several tasks and still shares much.

    Args:
        rows: The rows.
        anchors: Replayed trajectories beside them; drawn round-robin from a seeded shuffle.
        size: Rows of one update; the updates of an epoch are as equal as can be.
        anchor_size: Anchors of one update; fewer where there are fewer.
        epochs: Passes over the rows; the last may be a part.
        max_updates: At most; None = as the epochs say.
        seed: The run's.
    """

    def __init__(
        self,
        rows: Sequence[Unit],
        anchors: Sequence[Unit] = (),
        *,
        size: int,
        anchor_size: int = 0,
        epochs: float = 1.0,
        max_updates: int | None = None,
        seed: int = 0,
    ) -> None:
        self._rows, self._anchors = list(rows), list(anchors)
        self._block = max(1, size // 4)
        self._anchor_size = min(anchor_size, len(self._anchors))
        self._seed = seed
        self.per_epoch = math.ceil(len(self._rows) / size)
        total = max(1, math.ceil(round(epochs * self.per_epoch, 6)))
        self._total = total if max_updates is None else min(total, max_updates)
        self._orders: dict[tuple[str, int], list[Unit]] = {}

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, number: int) -> Update:  # type: ignore[override]
        if not 0 <= number < self._total:
            raise IndexError(number)
        epoch, place = divmod(number, self.per_epoch)
        order = self._order("rows", epoch)
        start, end = (k * len(order) // self.per_epoch for k in (place, place + 1))
        first = number * self._anchor_size
        return Update(
            number, tuple(order[start:end]), tuple(self._anchor(n) for n in range(first, first + self._anchor_size))
        )

    def _anchor(self, number: int) -> Unit:
        cycle, place = divmod(number, len(self._anchors))
        return self._order("anchors", cycle)[place]

    def _order(self, what: str, epoch: int) -> list[Unit]:
        order = self._orders.get((what, epoch))
        if order is None:
            for key in [key for key in self._orders if key[0] == what and key[1] < epoch - 1]:
                del self._orders[key]
            chance = random.Random(derive_seed(self._seed, "order", what, epoch))
            if what == "rows":
                blocks = _blocks(self._rows, self._block, chance)
                chance.shuffle(blocks)
                order = [unit for block in blocks for unit in block]
            else:
                order = chance.sample(self._anchors, len(self._anchors))
            self._orders[what, epoch] = order
        return order


class RoundSchedule(UpdateSchedule):
    """The updates of an online run by number, without rows: their rows are known only after a round is played."""

    def __init__(self, total: int, per_round: int) -> None:
        self._total, self.per_epoch = total, per_round

    def __getitem__(self, number: int) -> Update:  # type: ignore[override]
        if not 0 <= number < self._total:
            raise IndexError(number)
        return Update(number, (), ())


def _blocks(rows: Iterable[Unit], size: int, chance: random.Random) -> list[list[Unit]]:
    """Return rows of one tree in blocks of at most `size`; a node is broken only where it is larger."""
    trees: dict[str, dict[str, list[Unit]]] = {}
    for unit in rows:
        trees.setdefault(unit.tree, {}).setdefault(unit.node, []).append(unit)
    blocks: list[list[Unit]] = []
    for nodes in trees.values():
        block: list[Unit] = []
        groups = list(nodes.values())
        chance.shuffle(groups)
        for group in groups:
            for start in range(0, len(group), size):
                part = group[start : start + size]
                if block and len(block) + len(part) > size:
                    blocks.append(block)
                    block = []
                block = block + part
        blocks.append(block)
    return blocks


def fill(units: Sequence[Unit], tokens: int, share: bool = True) -> list[list[Unit]]:
    """Return the units in packs of at most `tokens` tokens; one that is larger has a pack of its own.

    Args:
        units: The units to compute.
        tokens: The budget of a pack.
        share: Count shared prefixes once, and put units with alike beginnings together.
    """
    if share:
        return [[units[index] for index in pack] for pack in plan([unit.sequences for unit in units], tokens)]
    packs: list[list[Unit]] = []
    used = 0
    for unit in sorted(units, key=lambda unit: -unit.raw_tokens):  # stable: the same units give the same packs
        if packs and used + unit.raw_tokens <= tokens:
            packs[-1].append(unit)
            used += unit.raw_tokens
        else:
            packs.append([unit])
            used = unit.raw_tokens
    return packs


def counted(packs: Sequence[Sequence[Unit]], what: str) -> Iterator[Sequence[Unit]]:
    """Yield the packs, and note how many of their tokens are computed."""
    total, done = sum(unit.raw_tokens for units in packs for unit in units), 0
    with crash_notes.noted(what):
        for units in packs:
            crash_notes.note(f"{what}: {done:,} of {total:,} tokens")
            yield units
            done += sum(unit.raw_tokens for unit in units)
