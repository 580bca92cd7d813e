"""Sibling sets: all executed actions of one node, with their values and the weights that a policy should give them.

Nothing is chosen by confidence, as it is for pairs: every action with an estimate is in the set, and its weight is
softmax(A / tau) of its advantage. Values of equal states (equal `fingerprint`) can be pooled.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from offline_agent.preferences.pairs.siblings import Comparison
from offline_agent.preferences.pairs.step import CALL_FAULTS
from offline_agent.preferences.statistics import JEFFREYS, Evidence, Prior, posterior_mean
from offline_agent.search.tree import ANSWERED

if TYPE_CHECKING:
    from offline_agent.search.tree import Edge, Node, SearchTree

Pool = Literal["none", "tree", "task"]


@dataclass(frozen=True, slots=True)
class SiblingSet:
    """The executed actions of a node.

    Attributes:
        node: The node.
        edges: The actions, at least two.
        values: Q of each: its posterior mean, pooled where equal states are.
        visits: Rollouts behind each; 1 for an end whose verdict settles it.
        value: V of the node: the mean of `values`, weighted by `visits`.
        weights: softmax((Q - V) / tau) of each; they sum to 1.
    """

    node: Node
    edges: tuple[Edge, ...]
    values: tuple[float, ...]
    visits: tuple[float, ...]
    value: float
    weights: tuple[float, ...]

    @property
    def gap(self) -> float:
        """The largest value less the least."""
        return max(self.values) - min(self.values)


@dataclass(slots=True)
class SiblingValues:
    """Values of actions by state, from the rollouts of one tree or of several.

    A value is the posterior mean under the prior, the sums being those of all edges of the same
    canonical action that leave the same state; or the verdict's score where the action ends the episode. States are the
    same where their fingerprints are equal, within a tree or within a task; a node without fingerprint is its own.

    Args:
        pool: none: every node is its own state. tree: equal fingerprints of one tree are. task: those of one task are.
        prior: The Beta prior of a value.
        exact: Whether one verdict settles an action that ends the episode; False where the verifier is noisy.
    """

    pool: Pool = "task"
    prior: Prior = JEFFREYS
    exact: bool = True
    _sums: dict[Hashable, Evidence] = field(default_factory=dict)
    _ends: defaultdict[Hashable, set[float]] = field(default_factory=lambda: defaultdict(set))

    def add(self, tree: SearchTree, name: str) -> None:
        """Add the rollouts of a tree under a name that no other tree has; add all trees before the first `sets`."""
        compared = Comparison(self.prior.successes, (0.0,), False, "reward", self.exact).of(tree)
        for node in _sound(tree):
            for edge in _executed(node):
                found = compared.evidence(edge)
                if found.known is not None or found.count > 0:
                    place = self._place(tree, name, edge)
                    before = self._sums.get(place, Evidence(0.0, 0.0))
                    self._sums[place] = Evidence(
                        before.successes + found.successes, before.failures + found.failures
                    )
                    if found.known is not None:
                        self._ends[place].add(found.known)

    def sets(self, tree: SearchTree, name: str, tau: float) -> Iterator[SiblingSet]:
        """Yield the sets of a tree that was added, in the order of its nodes; nodes with fewer than two have none.

        Args:
            tree: The tree.
            name: The name under which it was added.
            tau: Temperature of the weights, above 0.
        """
        for node in _sound(tree):
            known = [(edge, self._evidence(self._place(tree, name, edge))) for edge in _executed(node)]
            pairs = [(edge, evidence) for edge, evidence in known if evidence is not None]
            if len(pairs) < 2:
                continue
            values = [posterior_mean(evidence, self.prior) for _, evidence in pairs]
            visits = [1.0 if evidence.known is not None else evidence.count for _, evidence in pairs]
            mean = math.fsum(n * q for n, q in zip(visits, values, strict=True)) / math.fsum(visits)
            edges = tuple(edge for edge, _ in pairs)
            yield SiblingSet(node, edges, tuple(values), tuple(visits), mean, softmax([q - mean for q in values], tau))

    def _evidence(self, place: Hashable) -> Evidence | None:
        """Return what is known of a place; its ends' value is exact only where all of them agree."""
        sums, ends = self._sums.get(place), self._ends.get(place, set())
        return sums if sums is None or len(ends) != 1 else replace(sums, known=next(iter(ends)))

    def _place(self, tree: SearchTree, name: str, edge: Edge) -> Hashable:
        node = edge.parent
        if self.pool == "none" or node.fingerprint is None:
            return name, "node", node.id, edge.key
        return (name if self.pool == "tree" else tree.task.task_id), "state", node.fingerprint, edge.key


def softmax(values: Sequence[float], tau: float) -> tuple[float, ...]:
    """Return exp(value / tau) of each, divided by their sum."""
    top = max(values)
    powers = [math.exp((value - top) / tau) for value in values]
    total = math.fsum(powers)
    return tuple(power / total for power in powers)


def unfit(found: SiblingSet, min_gap: float) -> str | None:
    """Return why nothing should be learnt from a set; None where it can be.

    Without a gap the weights would be even: that all have failed, or succeeded, says nothing for an even policy.
    """
    if found.gap < min_gap:
        return f"its values differ by less than {min_gap:g}"
    best = found.edges[max(range(len(found.edges)), key=lambda place: found.values[place])]
    if best.fault in CALL_FAULTS:
        return "its best action is a malformed call"
    return None if best.fault is None else "its best action is a call that the tool refused"


def _sound(tree: SearchTree) -> Iterator[Node]:
    """Yield the nodes whose values mean something."""
    if tree.quarantined is None:
        yield from (node for node in tree.nodes if node.edges and node.quarantined is None)


def _executed(node: Node) -> Iterator[Edge]:
    """Yield the executed actions of a node that are in no quarantine, were not cut and always answered alike."""
    answered = {edge.key.partition(ANSWERED)[0] for edge in node.edges if ANSWERED in edge.key}
    for edge in node.edges:
        child = edge.child
        if child is None or child.cut is not None or edge.quarantined is not None:
            continue
        if edge.key.partition(ANSWERED)[0] not in answered:
            yield edge
