"""Sibling rows: all executed actions of a tree's node as token ids and masks, each proved by a certificate of its own.

Read from the trees of finished runs: no table stores them. Knows trees and certificates, not tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from offline_agent.errors import DataError
from offline_agent.preferences.dataset.export import trajectory_row
from offline_agent.preferences.sibling_sets import Pool, SiblingSet, SiblingValues, unfit
from offline_agent.records import Trajectory
from offline_agent.rendering.renderer import Renderer
from offline_agent.search.serialization import tree_from_json
from offline_agent.search.tree import Edge, SearchTree
from offline_agent.store.columns import known
from offline_agent.store.provenance import hash_path
from offline_agent.store.run_directory import read_tree
from offline_agent.training.data import sources
from offline_agent.training.data.load_report import LoadReport
from offline_agent.training.data.reading import Ids


@dataclass(frozen=True, slots=True)
class SiblingRow:
    """The executed actions of one node.

    Attributes:
        name: For messages: `<file> node <id>`.
        task_id: The task.
        tree_id, node_id: Its tree, by its file, and its node.
        sequences: (input_ids int [L], action_mask int [L]) of each action after the node's history; 1 = the action's
            own tokens, as the policy sampled them.
        weights: Target probability of each action; they sum to 1.
        values: Q of each.
        visits: Rollouts behind each.
    """

    name: str
    task_id: str
    tree_id: str
    node_id: int
    sequences: tuple[tuple[Ids, Ids], ...]
    weights: tuple[float, ...]
    values: tuple[float, ...]
    visits: tuple[float, ...]


def load_siblings(
    runs: Sequence[str],
    renderer: Renderer,
    *,
    max_length: int,
    tau: float,
    pool: Pool = "task",
    min_gap: float = 0.2,
    exact: bool = True,
    key: str = "data",
) -> tuple[list[SiblingRow], LoadReport]:
    """Return the sibling rows of the trees of runs, in order, and what was left out.

    Args:
        runs: Finished run directories; their `trees/` is read, twice where states of a task are pooled.
        renderer: Of the tokenizer that is trained with.
        max_length: Nodes with a longer sequence are left out.
        tau: Temperature of the weights.
        pool: Which equal states share their values; see `sibling_sets.SiblingValues`.
        min_gap: Nodes whose values differ by less are left out.
        exact: Whether one verdict settles an action that ends the episode.
        key: The configuration section the paths are from, for messages.

    Raises:
        ConfigError: A run is none, is unfinished or has no trees; or no node is left.
        DataError: A tree is broken, or not of the train split.
    """
    report = LoadReport()
    files = sources.trees(runs, key)
    for folder in dict.fromkeys(file.parent for file in files):
        report.files.append(str(folder))
        report.hashes[str(folder)] = hash_path(folder)
    values = SiblingValues(pool, exact=exact)
    if pool == "task":
        for file in files:
            values.add(_tree(file), str(file))
    rows: list[SiblingRow] = []
    for file in files:
        tree = _tree(file)
        if pool != "task":
            values.add(tree, str(file))
        for found in values.sets(tree, str(file), tau):
            report.read += 1
            row = _row(tree, file, found, renderer, max_length, min_gap, report)
            if row is not None:
                rows.append(row)
    report.finish(((row.task_id, "siblings", _length(row)) for row in rows), "node")
    return rows, report


def _tree(file: Path) -> SearchTree:
    tree = tree_from_json(read_tree(file))
    if tree.task.split != "train":
        raise DataError(
            f"{file}: its split is {tree.task.split!r}; what a policy is measured on must not be trained on. Search "
            "tasks of tasks.split=train"
        )
    return tree


def _row(
    tree: SearchTree, file: Path, found: SiblingSet, renderer: Renderer, most: int, min_gap: float, report: LoadReport
) -> SiblingRow | None:
    """Return the row of a set; None where it was left out."""
    name = f"{file} node {found.node.id}"
    if why := unfit(found, min_gap):
        report.leave("no_contrast", name, why)
        return None
    try:
        sequences = tuple(_sequences(tree, found.edges, renderer))
    except DataError as error:
        report.leave("unusable", name, f"an action fails its certificate: {error}")
        return None
    if not all(any(mask[1:]) for _, mask in sequences):
        report.leave("no_agent_tokens", name, "an action has no token that the policy sampled")
        return None
    row = SiblingRow(
        name, tree.task.task_id, str(file), found.node.id, sequences, found.weights, found.values, found.visits
    )
    if _length(row) > most:
        report.leave("too_long", name, f"{_length(row)} tokens, at most {most} are allowed")
        return None
    return row


def _sequences(tree: SearchTree, edges: Sequence[Edge], renderer: Renderer) -> Iterator[tuple[Ids, Ids]]:
    """Yield ids and mask of each action; raises DataError where one fails its certificate."""
    for edge in edges:
        child = edge.child
        assert child is not None  # executed
        step = Trajectory(
            child.context, tree.steps(child, after=edge.parent), child.verdict, child.terminated, False, "search"
        )
        row = known(trajectory_row(step, renderer))  # the turns before are the prompt: their mask is 0
        yield tuple(row["input_ids"]), tuple(row["action_mask"])


def _length(row: SiblingRow) -> int:
    return max(len(ids) for ids, _ in row.sequences)
