"""Rows of one tree: what was mined from it, ready to be written or balanced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_agent.preferences.dataset.candidates import FactMaker, FactTable, pack
from offline_agent.preferences.dataset.export import Row, trajectory_rows
from offline_agent.preferences.mining import MinedTree
from offline_agent.preferences.refusals import Refusal

if TYPE_CHECKING:
    from offline_agent.rendering.renderer import Renderer


@dataclass(frozen=True, slots=True)
class TreeRows:
    """The rows, candidate pairs and refusals of one tree; can be pickled.

    Attributes:
        cost: Counts of the mining: its costs, and the rows left out; they are added up.
        facts: Facts of its pairs, for balancing.
        pairs: The pairs, packed by `candidates.pack`.
        trajectories: Rows.
        filtered: Rows of the trajectories kept for fine-tuning.
        refusals: Refused pairs and trajectories, those without a row included, in that order.
    """

    cost: Mapping[str, int]
    facts: FactTable
    pairs: bytes
    trajectories: Sequence[Row]
    filtered: Sequence[Row]
    refusals: Sequence[Refusal]


def rows_of(mined: MinedTree, renderer: Renderer | None, model: str | None) -> TreeRows:
    """Return what was mined from a tree as rows; pairs wait until those of all trees are balanced.

    Args:
        mined: What was mined from it.
        renderer: Gives the token columns; None leaves them null.
        model: Hash of the policy's model, where it has one.
    """
    refusals = list(mined.refusals)
    # Most of the filtered ones are among the trajectories, and are rendered once; refusals of requests are not.
    every = {id(one): one for one in (*mined.trajectories, *mined.filtered)}
    rows = {key: list(trajectory_rows([one], renderer, refusals, model)) for key, one in every.items()}
    return TreeRows(
        mined.cost(),
        FactTable.of(map(FactMaker().facts_of, mined.pairs)),
        pack(mined.pairs),
        [row for one in mined.trajectories for row in rows[id(one)]],
        [row for one in mined.filtered for row in rows[id(one)]],
        refusals,
    )
