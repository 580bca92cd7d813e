"""Priors, progressive widening, and selection: PUCT and UCT on counts that include simulations in flight."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import sqrt

from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import Edge, Node, SearchTree

Selector = Callable[[SearchTree, Node], Edge | None]
"""Returns the edge to follow, or None when every edge is closed."""


def refresh_priors(node: Node) -> None:
    """Set each edge's prior to (count + softmax of length-normalised log-prob) / (K + 1).

    K is the number of proposals merged into the edges. Where the policy gives no log-probabilities the softmax is
    uniform. The priors of a node sum to 1.
    """
    edges = node.edges
    if len(edges) == 1:
        edges[0].prior = 1.0
        return
    # Counts alone would say nothing while every proposal is drawn once; log-probabilities alone would favour whatever
    # the policy words briefly. The softmax weighs as much as one proposal.
    total = sum([edge.count for edge in edges]) + 1
    logps = [edge.logp for edge in edges]
    known = [logp for logp in logps if logp is not None]
    if len(known) == len(edges):
        top = max(known)
        weights = [math.exp(logp - top) for logp in known]
        norm = sum(weights)
        for edge, weight in zip(edges, weights, strict=True):
            edge.prior = (edge.count + weight / norm) / total
    else:
        share = 1 / len(edges)
        for edge in edges:
            edge.prior = (edge.count + share) / total


def proposals_wanted(settings: SearchSettings, node: Node) -> int:
    """Return how many proposals a node should draw before it is left through one of its edges.

    Progressive widening (Coulom 2007): a node may have `widening` * sqrt(N) children, at most `max_children`. It draws
    none while simulations in flight may be drawing the same ones, and none once it is saturated.
    """
    leaf = node.leaf
    if node.drawing or (leaf is not None and leaf.active) or node.duplicates >= settings.saturation:
        return 0
    edges = len(node.edges)
    room = settings.max_children - edges
    if node.samples < settings.proposals:
        return settings.proposals - node.samples
    if all([edge.closed for edge in node.edges]):
        # Nothing below is open: one request decides whether the policy has more to say here.
        return min(max(settings.proposals, settings.saturation - node.duplicates), room)
    limit = settings.widening * sqrt(node.visits)
    if edges < limit:
        # The more proposals in a row added nothing, the more it takes to find something new.
        return min(settings.proposals, math.ceil(limit) - edges + node.duplicates, room)
    return 0


def has_enough(settings: SearchSettings, tree: SearchTree) -> bool:
    """Return whether the plain rollouts are committed, and the tree holds what `until` asks for."""
    edges = tree.root.edges
    if tree.commits < settings.proposals or not any([edge.successes for edge in edges]):
        return False
    return settings.until == "success" or any([edge.successes < edge.visits for edge in edges])


def mix(value: float | None, visits: int, critic: float | None) -> float | None:
    """Return alpha * value + (1 - alpha) * critic: the mixed Q of AgentQ (Putta et al. 2024, section 4.2).

    Args:
        value: Mean of what was backed up, on the critic's scale of [0, 1]; None before the first visit.
        visits: Number n of values in that mean.
        critic: The critic's score in [0, 1]; None where it has no opinion, which leaves the value as it is.

    Returns:
        The mixture; the one that is known where the other is not; None where neither is.
    """
    if critic is None or value is None:
        return critic if value is None else value
    alpha = visits / (visits + 2)
    return alpha * value + (1 - alpha) * critic


def puct(c: float, fpu_reduction: float) -> Selector:
    """Return PUCT on min-max-normalised values (Silver et al. 2017; Schrittwieser et al. 2020, appendix B).

    Score = Qm + c * P * sqrt(N_parent) / (1 + N), where N counts simulations in flight too (WU-UCT, Liu et al. 2020:
    they enter the exploration term, not the value). Qm is the mixture (`mix`) of the search's value, normalised by the
    tree's least and greatest, and of the critic's score, which is in [0, 1] already: so its weight does not depend on
    the range of the tree's values, and it decides while all of them are equal. Then values stay as they are (as in
    MuZero's pseudocode). An unvisited edge has the critic's score
    as its value; without one, V_parent - fpu_reduction * sqrt(sum of visited priors) (first-play urgency).
    """

    def select(tree: SearchTree, node: Node) -> Edge | None:
        # Normalisation is (value - low) / span. The shift by `low` moves all scores by the same amount, so it is left
        # out; the critic's score, which is not normalised, is shifted the other way instead.
        span = tree.high - tree.low
        if span > 1e-9:
            scale = 1.0 / span
            shift = tree.low * scale
        else:  # all values are equal
            scale, shift = 0.0, -tree.low if span >= 0.0 else 0.0
        explore = c * sqrt(node.visits + node.pending)
        best: Edge | None = None
        fresh: Edge | None = None
        best_score, best_bonus = -1e30, -1.0
        for edge in node.edges:
            if edge.closed:
                continue
            visits, critic = edge.visits, edge.critic
            if visits:
                value: float = edge.value_sum / visits * scale
                if critic is not None:
                    value = mix(value, visits, critic + shift)  # type: ignore[assignment]  # both known
            elif critic is None:  # all such edges share one value, which is computed once, below
                bonus = edge.prior * explore / (1 + edge.pending)
                if bonus > best_bonus:
                    fresh, best_bonus = edge, bonus
                continue
            else:
                value = critic + shift
            score = value + edge.prior * explore / (1 + visits + edge.pending)
            if score > best_score:
                best, best_score = edge, score
        if fresh is not None:
            seen = sum([edge.prior for edge in node.edges if edge.visits])
            mean = node.value_sum / node.visits if scale and node.visits else 0.0
            if mean * scale - fpu_reduction * sqrt(seen) + best_bonus > best_score:
                return fresh
        return best

    return select


def uct(c: float) -> Selector:
    """Return AgentQ's UCT: Q + c * sqrt(log N(h) / (1 + N(h'))) (Putta et al. 2024).

    Q mixes the value, not normalised, and the critic's score; see `mix`. The Q of an unvisited edge is the critic's
    score; without one it is AgentQ's initial value, 0.
    """

    def select(tree: SearchTree, node: Node) -> Edge | None:
        log_visits = math.log(max(1, node.visits + node.pending))
        best: Edge | None = None
        best_score = -1e30
        for edge in node.edges:
            if edge.closed:
                continue
            value = mix(edge.value, edge.visits, edge.critic) or 0.0
            score = value + c * math.sqrt(log_visits / (1 + edge.visits + edge.pending))
            if score > best_score:
                best, best_score = edge, score
        return best

    return select
