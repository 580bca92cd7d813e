"""Siblings of a tree compared: two actions after one history, by their rollouts and by policy-weighted values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from offline_agent.preferences.pairs.policy_value import PolicyValue, as_evidence, policy_values
from offline_agent.preferences.shrinkage import NodePrior, node_prior
from offline_agent.preferences.statistics import Evidence

if TYPE_CHECKING:
    from offline_agent.records import PreferencePair
    from offline_agent.search.tree import Edge, Node, SearchTree


_FEW = 2.0  # rollouts that the root's mean counts for in a node's


@dataclass(frozen=True, slots=True)
class Side:
    """One executed action as a candidate.

    Attributes:
        edge: The action.
        evidence: The estimate from the rollouts through it.
        opinion: The estimate from the policy-weighted values; the same as `evidence` where these are not asked.
    """

    edge: Edge
    evidence: Evidence
    opinion: Evidence


@dataclass(frozen=True, slots=True)
class Comparison:
    """Settings by which actions are valued and compared.

    Attributes:
        concentrations: How alike siblings may be (`preferences.shrinkage`); (0,) = they tell nothing of each other.
        second_opinion: Whether the policy-weighted values (`policy_value`) are asked beside the rollouts.
        value: The value of a rollout: its `reward` or `success`.
        exact_terminals: Whether one verdict settles an action that ends the episode.
    """

    concentrations: tuple[float, ...]
    second_opinion: bool
    value: Literal["reward", "success"]
    exact_terminals: bool

    def of(self, tree: SearchTree) -> Siblings:
        """Return the comparison of a tree's actions."""
        policy = policy_values(tree, self.value == "success") if self.second_opinion else {}
        return Siblings(self, policy, tree.root)


class Siblings:
    """Compares the actions of one tree.

    Args:
        rules: How.
        policy: The policy-weighted value of each edge, by edge id; empty where they are not asked.
        root: The tree's root, whose mean stands in where a node's own is of few rollouts.
    """

    def __init__(self, rules: Comparison, policy: Mapping[int, PolicyValue], root: Node) -> None:
        self.rules = rules
        self._policy = policy
        self._priors: dict[int, NodePrior] = {}
        self._root_mean = self._mean(root, 0.5)

    def side(self, edge: Edge) -> Side:
        """Return the known values of an executed action.

        A child below which nothing is left to learn has no use for more visits: its policy-weighted value and that
        value's own uncertainty stand for it.
        """
        evidence, estimate = self.evidence(edge), self._policy.get(edge.id)
        if estimate is None or evidence.known is not None:
            return Side(edge, evidence, evidence)
        if edge.closed:
            settled = as_evidence(estimate)
            return Side(edge, settled, settled)
        return Side(edge, evidence, as_evidence(estimate, evidence.count))

    def evidence(self, edge: Edge) -> Evidence:
        """Return the scores of the rollouts through an edge, or the end's verdict where that is exact."""
        if self.exact(edge):
            assert edge.child is not None and edge.child.verdict is not None
            verdict = edge.child.verdict
            score = float(verdict.success is True) if self.rules.value == "success" else float(verdict.score or 0.0)
            return Evidence(score, 1.0 - score, known=score)
        total = float(edge.successes) if self.rules.value == "success" else edge.score_sum
        # Sums of floats can leave [0, n] by a rounding error.
        total = min(max(total, 0.0), float(edge.verified))
        return Evidence(total, rollouts(edge) - total)

    def exact(self, edge: Edge) -> bool:
        """Return whether the edge ends the episode with a verdict that settles its value."""
        return self.rules.exact_terminals and edge.exact

    def estimated(self, edge: Edge) -> bool:
        """Return whether the edge has a policy-weighted value."""
        return edge.id in self._policy

    def value(self, side: Side) -> float:
        """Return the value that is stored of a side: its posterior mean by the second opinion.

        The second opinion counts as no more rollouts than the side has.

        The gap between plain means is too large where a pair was chosen for it (the winner's curse), and a search's own
        means favour what it visits. The node's prior shrinks the former; weights by proposals undo the latter.
        """
        return self.prior(side.edge.parent).value(side.opinion, rollouts(side.edge))

    def sureness(self, better: Side, worse: Side) -> tuple[float, float]:
        """Return P(Q_better > Q_worse) by the rollouts, and by the second opinion."""
        prior = self.prior(better.edge.parent)
        return prior.above(better.evidence, worse.evidence), prior.above(better.opinion, worse.opinion)

    def prior(self, node: Node) -> NodePrior:
        """Return the prior of the actions at a node, given the results of all of them."""
        if node.id not in self._priors:
            actions = [side.opinion for side in self._sides(node)]
            mean = self._mean(node, self._root_mean)
            self._priors[node.id] = node_prior(mean, actions, self.rules.concentrations)
        return self._priors[node.id]

    def _mean(self, node: Node, otherwise: float) -> float:
        """Return the mean of a node's actions by the policy's proposals, with some rollouts of another mean."""
        sides = self._sides(node)
        draws = sum(max(side.edge.count, 1) for side in sides)
        if not draws:
            return otherwise
        total = sum(max(side.edge.count, 1) * (side.opinion.mean or 0.0) for side in sides)
        count = sum(rollouts(side.edge) for side in sides)
        return min(1.0, max(0.0, (count * total / draws + _FEW * otherwise) / (count + _FEW)))

    def _sides(self, node: Node) -> list[Side]:
        sides = [self.side(edge) for edge in node.edges if edge.child is not None and edge.quarantined is None]
        return [side for side in sides if side.opinion.mean is not None]

    def above(self, better: Edge, worse: Edge) -> float | None:
        """Return the lower of the two; None where one of the actions has no rollout."""
        if not (self._followed(better) and self._followed(worse)):
            return None
        return min(self.sureness(self.side(better), self.side(worse)))

    def _followed(self, edge: Edge) -> bool:
        return edge.child is not None and edge.quarantined is None and (self.exact(edge) or rollouts(edge) > 0)


def rollouts(edge: Edge) -> int:
    """Return how many rollouts say something of an edge: judged ones, and those that a limit of the policy cut."""
    return edge.verified + edge.truncated


def with_confidence(pair: PreferencePair, tree: SearchTree, compared: Siblings) -> PreferencePair:
    """Return a pair with the confidence of its first differing action, where the tree can tell.

    It stays as it is where it has one, where one of the actions is not in the tree, and where the pair is of another
    request than the tree: values of one request say nothing of another.
    """
    if pair.confidence is not None or pair.prefix.task.task_id != tree.task.task_id:
        return pair
    if pair.chosen_edge is None or pair.rejected_edge is None:
        return pair
    sure = compared.above(tree.edges[pair.chosen_edge], tree.edges[pair.rejected_edge])
    return replace(pair, confidence=sure)


def begins_with_worse_refusal(pair: PreferencePair, tree: SearchTree) -> bool:
    """Return whether a pair's chosen side begins with a refused call that the tree says is the worse of the two."""
    if pair.chosen_edge is None or pair.confidence is None or pair.confidence >= 0.5:
        return False
    return tree.edges[pair.chosen_edge].fault is not None
