"""Siblings of a tree compared: two actions after one history, by their rollouts and by policy-weighted values.

The mean that a search backs up favours what the search has found to be good, below the better-visited actions more
than below the others, so siblings compare unfairly. Proposals are fair draws from the policy: weighting by their counts
instead of by visits takes the search's own choices out again (as importance weighting would, with less variance).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from offline_agent.preferences.statistics import Evidence, NodePrior, node_prior

if TYPE_CHECKING:
    from offline_agent.preferences.records import PreferencePair
    from offline_agent.search.tree import Edge, Node, SearchTree


class PolicyValue(NamedTuple):
    """A value and the variance of its estimate."""

    mean: float
    variance: float


def policy_values(tree: SearchTree, use_success: bool = False, exact: bool = True) -> dict[int, PolicyValue]:
    """Return Q^π of every edge that something is known of, by edge id.

    V(h) = Σ_a p_a Q(h, a), p_a the share of a's proposals among those drawn at h. Its variance is Σ p_a² Var Q_a plus
    that of the drawing itself, s²/n, where s² is the spread of the Q_a beyond their own errors, pooled with one
    pseudo-draw of the tree's own spread. An action that was never executed has the mean of its siblings, unsurely.
    Ends are known; those that a limit of the policy's own cut are worth 0, and so are turns that never end.

    Args:
        tree: The tree; parents come before children in `tree.nodes`.
        use_success: Ends are worth 1 or 0 by their success, not their score.
        exact: Whether one verdict settles an end; else it is worth the mean of its verdicts, with their variance.
    """
    spread = _spread(tree, use_success)
    values: dict[int, PolicyValue] = {}
    nodes: dict[int, PolicyValue] = {}
    for node in reversed(tree.nodes):
        estimate = _end(node, use_success, exact) if node.terminated or node.truncated else _mix(node, nodes, spread)
        if estimate is None:
            continue
        nodes[node.id] = estimate
        if node.edge is not None and node.edge.quarantined is None:
            values[node.edge.id] = estimate
    return values


def as_evidence(estimate: PolicyValue, most: float | None = None) -> Evidence:
    """Return the estimate as the sums of equally informative independent scores.

    Args:
        estimate: The value and its variance.
        most: The number of rollouts behind it, where it may not count for more than these.
    """
    count = 1.0
    for _ in range(3):  # the smoothed mean depends on the count, and the count on it
        smooth = (estimate.mean * count + 0.5) / (count + 1)
        count = smooth * (1 - smooth) / max(estimate.variance, 1e-6)
    if most is not None:
        count = min(count, most)
    return Evidence(count * estimate.mean, count * (1 - estimate.mean))


def _spread(tree: SearchTree, use_success: bool) -> float:
    """m(1 − m) of the mean score of all rollouts: the greatest variance an end can have in this tree."""
    judged = sum(edge.verified for edge in tree.root.edges)
    total = sum(edge.successes if use_success else edge.score_sum for edge in tree.root.edges)
    mean = min(max((total + 0.5) / (judged + 1), 0.0), 1.0)
    return mean * (1 - mean)


def _end(node: Node, use_success: bool, exact: bool) -> PolicyValue | None:
    if node.truncated:
        return PolicyValue(0.0, 0.0)
    if node.verdict is None or node.verdict.score is None:
        return None
    if not exact and node.edge is not None and (n := node.edge.verified):
        total = float(node.edge.successes) if use_success else node.edge.score_sum
        smooth = (total + 0.5) / (n + 1)
        return PolicyValue(total / n, smooth * (1 - smooth) / n)
    return PolicyValue(float(node.verdict.success is True) if use_success else node.verdict.score, 0.0)


def _mix(node: Node, nodes: dict[int, PolicyValue], spread: float) -> PolicyValue | None:
    known: list[tuple[int, PolicyValue]] = []
    unknown = 0
    for edge in node.edges:
        draws = max(edge.count, 1)
        found = nodes.get(edge.child.id) if edge.child is not None and edge.quarantined is None else None
        if edge.child is None and edge.fault == "no_end":  # proposed and not followed: known without executing it
            found = PolicyValue(0.0, 0.0)
        if found is None:
            unknown += draws
        else:
            known.append((draws, found))
    n = sum(draws for draws, _ in known)
    if not n:
        return None
    mean = sum(draws * found.mean for draws, found in known) / n
    total = n + unknown
    within = sum((draws / total) ** 2 * found.variance for draws, found in known) + (unknown / total) ** 2 / 8
    own = sum(draws * found.variance for draws, found in known) / n
    seen = max(0.0, sum(draws * ((found.mean - mean) ** 2 - found.variance) for draws, found in known))
    between = (seen + max(0.0, spread - own)) / n
    return PolicyValue(mean, within + between / n)


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


class Siblings:
    """Compares the actions of one tree.

    Args:
        tree: The tree. The mean of its root stands in where a node's own is of few rollouts.
        value: The value of a rollout: its `reward` or `success`.
        exact_terminals: Whether one verdict settles an action that ends the episode.
        second_opinion: Whether the policy-weighted values (`policy_values`) are asked beside the rollouts.
        concentrations: How alike siblings may be (`preferences.statistics`); (0,) = they tell nothing of each other.
    """

    def __init__(
        self, tree: SearchTree, value: Literal["reward", "success"], exact_terminals: bool, second_opinion: bool,
        concentrations: Sequence[float],
    ) -> None:  # fmt: skip
        self._by_success = value == "success"
        self._exact_terminals, self._concentrations = exact_terminals, concentrations
        self._policy = policy_values(tree, self._by_success, exact_terminals) if second_opinion else {}
        self._priors: dict[int, NodePrior] = {}
        self._root_mean = self._mean(tree.root, 0.5)

    def side(self, edge: Edge) -> Side:
        """Return the known values of an executed action.

        A child below which nothing is left to learn has no use for more visits: its policy-weighted value and that
        value's own uncertainty stand for it.
        """
        evidence, estimate = self.evidence(edge), self._policy.get(edge.id)
        if estimate is None or evidence.known is not None:
            return Side(edge, evidence, evidence)
        if self.settled(edge):
            settled = as_evidence(estimate)
            return Side(edge, settled, settled)
        return Side(edge, evidence, as_evidence(estimate, evidence.count))

    def evidence(self, edge: Edge) -> Evidence:
        """Return the scores of the rollouts through an edge, or the end's verdict where that is exact."""
        if self.exact(edge):
            assert edge.child is not None and edge.child.verdict is not None
            verdict = edge.child.verdict
            score = float(verdict.success is True) if self._by_success else float(verdict.score or 0.0)
            return Evidence(score, 1.0 - score, known=score)
        total = float(edge.successes) if self._by_success else edge.score_sum
        # Sums of floats can leave [0, n] by a rounding error.
        total = min(max(total, 0.0), float(edge.verified))
        return Evidence(total, rollouts(edge) - total)

    def exact(self, edge: Edge) -> bool:
        """Return whether the edge ends the episode with a verdict that settles its value."""
        return self._exact_terminals and edge.exact

    def settled(self, edge: Edge) -> bool:
        """Return whether nothing is left to learn below an edge, and its policy-weighted value stands for it."""
        return self._exact_terminals and edge.closed and edge.id in self._policy

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
            self._priors[node.id] = node_prior(mean, actions, self._concentrations)
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
