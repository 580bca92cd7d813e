"""Quarantine of a branch: its values are noise, and leave every sum above it."""

from __future__ import annotations

from collections.abc import Iterable

from offline_agent.search.tree import Edge, SearchTree


def is_noise(path: Iterable[Edge]) -> bool:
    """Return whether an edge of a path is quarantined."""
    return any([edge.quarantined is not None for edge in path])


def quarantine(tree: SearchTree, edge: Edge, reason: str, gamma: float) -> None:
    """Take what was backed up through an edge out of its sums and of all sums above, `low` and `high` included.

    Nodes behind the edge keep their sums, as a record of what was measured there.

    Args:
        tree: The edge's.
        edge: The edge; where it is quarantined already, nothing changes.
        reason: Why its values are noise.
        gamma: Discount per step with which they were backed up.
    """
    tree.noisy = True
    if edge.quarantined is not None:
        return
    visits, value, score = edge.visits, edge.value_sum, edge.score_sum
    verified, successes, truncated = edge.verified, edge.successes, edge.truncated
    above: Edge | None = edge
    while above is not None and above.quarantined is None:  # what lies behind another one has left already
        above.visits -= visits
        above.verified -= verified
        above.successes -= successes
        above.truncated -= truncated
        above.value_sum = above.value_sum - value if above.visits else 0.0  # without what rounding left
        above.score_sum = above.score_sum - score if above.verified else 0.0
        value *= gamma
        node = above.parent
        node.visits -= visits
        node.value_sum = node.value_sum - value if node.visits else 0.0
        above = node.edge
    edge.quarantined = reason
    if visits:
        _see_again(tree)


def _see_again(tree: SearchTree) -> None:
    """Set `low` and `high` by the values that stand."""
    tree.low, tree.high = float("inf"), float("-inf")
    sound = [True] * len(tree.nodes)
    for node in tree.nodes[1:]:
        edge = node.edge
        assert edge is not None  # only the root has none
        sound[node.id] = edge.quarantined is None and sound[edge.parent.id]
        if sound[node.id] and edge.visits:
            tree.see(edge.value_sum / edge.visits)
