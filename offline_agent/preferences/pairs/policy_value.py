"""The value of an action under the policy itself: the tree's values, weighted by how often it proposes each action.

The mean that a search backs up favours what the search has found to be good, below the better-visited actions more
than below the others, so siblings compare unfairly. Proposals are fair draws from the policy: weighting by their counts
instead of by visits takes the search's own choices out again (as importance weighting would, with less variance).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from offline_agent.preferences.statistics import Evidence

if TYPE_CHECKING:
    from offline_agent.search.tree import Node, SearchTree


class PolicyValue(NamedTuple):
    """A value and the variance of its estimate."""

    mean: float
    variance: float


def policy_values(tree: SearchTree, use_success: bool = False) -> dict[int, PolicyValue]:
    """Return Q^π of every edge that something is known of, by edge id.

    V(h) = Σ_a p_a Q(h, a), p_a the share of a's proposals among those drawn at h. Its variance is Σ p_a² Var Q_a plus
    that of the drawing itself, s²/n, where s² is the spread of the Q_a beyond their own errors, pooled with one
    pseudo-draw of the tree's own spread. An action that was never executed has the mean of its siblings, unsurely.
    Ends are known; those that a limit of the policy's own cut are worth 0, and so are turns that never end.

    Args:
        tree: The tree; parents come before children in `tree.nodes`.
        use_success: Ends are worth 1 or 0 by their success, not their score.
    """
    spread = _spread(tree, use_success)
    values: dict[int, PolicyValue] = {}
    nodes: dict[int, PolicyValue] = {}
    for node in reversed(tree.nodes):
        estimate = _end(node, use_success) if node.terminated or node.truncated else _mix(node, nodes, spread)
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


def _end(node: Node, use_success: bool) -> PolicyValue | None:
    if node.truncated:
        return PolicyValue(0.0, 0.0)
    if node.verdict is None or node.verdict.score is None:
        return None
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
