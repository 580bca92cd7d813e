"""Selection of the next deviation from what was played: the likeliest untried action anywhere in the tree.

It knows nodes, edges and the policy's probabilities, and nothing of values.
"""

from __future__ import annotations

import math

from offline_agent.search.tree import Edge, Node, SearchTree


def probability(edge: Edge) -> float | None:
    """Return the policy's probability of an edge: the sum over its distinct texts; None without log-probabilities.

    A lower bound where an action has more wordings than were drawn.
    """
    total = 0.0
    for action in edge.actions:
        if not action.logps:
            return None
        total += math.exp(sum(action.logps))
    return min(1.0, total)


class Deviations:
    """The untried actions of one tree, each with the policy's probability of it.

    An untried action is an edge that was proposed and not executed, or an action that the node does not know yet; the
    probability of the latter is 1 less that of all its edges, divided by 1 + the proposals in a row that added
    nothing. Without log-probabilities an edge has its share of the proposals, and an unknown action the share of the
    proposals that were drawn once (Good 1953, the missing mass).

    The greatest probability is where the policy was least sure of what it did (cf. ARPO, arXiv 2507.19849, which
    branches where entropy jumps), so deviations are tried in the order in which the policy itself would make them.
    Every selection looks at all nodes: the time of a search grows with the square of its tree.

    Args:
        max_children: Edges of a node at most.
        saturation: Proposals in a row without a new edge after which a node draws no more.
    """

    def __init__(self, max_children: int, saturation: int) -> None:
        self._most, self._saturation = max_children, saturation
        self._known: dict[int, tuple[int, list[float], float]] = {}  # by node: samples, of each edge, of the unknown

    def select(self, tree: SearchTree) -> tuple[Node, Edge | None] | None:
        """Return a node with the edge to execute, or with None to draw proposals; None where nothing is left now.

        Of equal ones the first in the order of nodes and edges. Nodes at which simulations in flight draw or execute
        are passed over, and so is what is closed or in quarantine.
        """
        best = 0.0
        place: tuple[Node, Edge | None] | None = None
        for node in tree.nodes:
            if node.closed or node.terminated or node.cut is not None or node.drawing:
                continue
            if node.edge is not None and node.edge.closed:
                continue
            if node.leaf is not None and node.leaf.active:
                continue
            edges, unknown = self._probabilities(node)
            if max(unknown, *edges, 0.0) <= best or node.quarantined is not None:
                continue
            for edge, chance in zip(node.edges, edges, strict=True):
                if chance > best and edge.child is None and not edge.closed and not edge.pending:
                    best, place = chance, (node, edge)
            if unknown > best and len(node.edges) < self._most and node.duplicates < self._saturation:
                best, place = unknown, (node, None)
        return place

    def _probabilities(self, node: Node) -> tuple[list[float], float]:
        """Return the probability of each edge of a node, and that of an action that it does not know."""
        kept = self._known.get(node.id)
        if kept is None or kept[0] != node.samples:
            found = [probability(edge) for edge in node.edges]
            known = [chance for chance in found if chance is not None]
            if len(known) == len(found):
                unknown = max(0.0, 1.0 - sum(known))
            else:
                drawn = max(1, node.samples)
                known = [edge.count / drawn for edge in node.edges]
                unknown = sum(edge.count == 1 for edge in node.edges) / drawn
            kept = self._known[node.id] = node.samples, known, unknown / (1 + node.duplicates)
        return kept[1], kept[2]
