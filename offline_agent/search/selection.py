"""Which edge to follow: PUCT and UCT on counts that include simulations in flight, and Gumbel at the root."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from math import sqrt

from offline_agent.search.tree import Edge, Node, SearchTree

Selector = Callable[[SearchTree, Node], Edge | None]
"""Returns the edge to follow, or None when every edge is closed."""


def refresh_priors(node: Node) -> None:
    """Set each edge's prior to (count + softmax of length-normalised log-prob) / (K + 1).

    K is the number of proposals behind the edges. Where the policy gives no log-probabilities the softmax is uniform.
    """
    edges = node.edges
    if len(edges) == 1:
        edges[0].prior = 1.0
        return
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


def mixed_value(edge: Edge, critic_alpha: float | None) -> float | None:
    """Return alpha * Q_search + (1 - alpha) * Q_critic, with alpha_n = n / (n + 2) unless it is fixed.

    A fixed alpha reproduces AgentQ (Putta et al. 2024). None where neither source knows anything.
    """
    visits, critic = edge.visits, edge.critic
    if critic is None:
        return edge.value_sum / visits if visits else None
    if not visits:
        return critic
    alpha = visits / (visits + 2) if critic_alpha is None else critic_alpha
    return alpha * edge.value_sum / visits + (1 - alpha) * critic


def puct(c: float = 1.25, fpu_reduction: float = 0.2, critic_alpha: float | None = None) -> Selector:
    """Return PUCT on min-max-normalised values (Silver et al. 2017; Schrittwieser et al. 2020, appendix B).

    Score = Qn + c * P * sqrt(N_parent) / (1 + N), where N counts simulations in flight too (WU-UCT, Liu et al. 2020:
    the exploration term alone knows of them, the value does not). An unvisited edge has the value
    V_parent - fpu_reduction * sqrt(sum of visited priors).
    """

    def select(tree: SearchTree, node: Node) -> Edge | None:
        # Every value is scaled and none is shifted by the minimum: that would move all scores alike.
        span = tree.high - tree.low
        scale = 1.0 / span if span > 1e-9 else 0.0
        explore = c * sqrt(node.visits + node.pending)
        best: Edge | None = None
        fresh: Edge | None = None
        best_score, best_bonus = -1e30, -1.0
        for edge in node.edges:
            if edge.closed:
                continue
            visits = edge.visits
            if visits:
                value = edge.value_sum / visits if edge.critic is None else mixed_value(edge, critic_alpha)
            elif edge.critic is None:
                bonus = edge.prior * explore / (1 + edge.pending)
                if bonus > best_bonus:
                    fresh, best_bonus = edge, bonus
                continue
            else:
                value = edge.critic
            score = value * scale + edge.prior * explore / (1 + visits + edge.pending)  # type: ignore[operator]
            if score > best_score:
                best, best_score = edge, score
        if fresh is not None:
            seen = sum([edge.prior for edge in node.edges if edge.visits])
            mean = node.value_sum / node.visits if scale and node.visits else 0.0
            if mean * scale - fpu_reduction * sqrt(seen) + best_bonus > best_score:
                return fresh
        return best

    return select


def uct(c: float = 1.0, critic_alpha: float | None = None) -> Selector:
    """Return AgentQ's UCT: Q + c * sqrt(log N(h) / (1 + N(h'))) (Putta et al. 2024), raw values.

    An unvisited edge's value is 0 unless the critic knows better.
    """

    def select(tree: SearchTree, node: Node) -> Edge | None:
        log_visits = math.log(max(1, node.visits + node.pending))
        best: Edge | None = None
        best_score = -1e30
        for edge in node.edges:
            if edge.closed:
                continue
            value = mixed_value(edge, critic_alpha) or 0.0
            score = value + c * math.sqrt(log_visits / (1 + edge.visits + edge.pending))
            if score > best_score:
                best, best_score = edge, score
        return best

    return select


class GumbelRoot:
    """Gumbel top-m with sequential halving at the root (Danihelka et al. 2022), on committed visits.

    Candidates are the m open edges of the greatest g + log prior; each phase gives every candidate the same number
    of visits and then drops the worse half by g + log prior + sigma(Qn), sigma(q) = (50 + max N) * q as in the paper.

    Args:
        m: Number of candidates.
        simulations: Budget that the phases divide among themselves.
        seed: Seeds the Gumbel noise, which is drawn per canonical key, so the order of proposals does not matter.
    """

    def __init__(self, m: int, simulations: int, seed: int) -> None:
        self._m = m
        self._simulations = simulations
        self._seed = seed
        self._active: list[Edge] | None = None
        self._quota = 0

    def select(self, tree: SearchTree, node: Node) -> Edge | None:
        """Return the candidate with the fewest visits, simulations in flight included; None when all are closed."""
        if self._active is None:
            ranked = sorted((e for e in node.edges if not e.closed), key=lambda e: (-self._gumbel(e), e.id))
            self._active = ranked[: self._m]
            self._left = max(1, self._simulations - node.visits)
            self._phases = max(1, math.ceil(math.log2(max(2, len(self._active)))))
            self._quota = max((e.visits for e in self._active), default=0) + self._share()
        while True:
            alive = [e for e in self._active if not e.closed]
            if not alive:
                open_edges = [e for e in node.edges if not e.closed]
                return max(open_edges, key=self._gumbel) if open_edges else None
            if len(alive) > 1 and all(e.visits + e.pending >= self._quota for e in alive):
                ranked = sorted(alive, key=lambda e: (-self._score(tree, node, e), e.id))
                self._active = alive = ranked[: max(1, len(ranked) // 2)]
                self._quota += self._share()
                continue
            return min(alive, key=lambda e: (e.visits + e.pending, -self._gumbel(e), e.id))

    def _share(self) -> int:
        assert self._active is not None  # set by select
        return max(1, self._left // (self._phases * max(1, len(self._active))))

    def _gumbel(self, edge: Edge) -> float:
        noise = random.Random(f"{self._seed}:{edge.key}").random()
        return -math.log(-math.log(max(noise, 1e-12))) + math.log(max(edge.prior, 1e-12))

    def _score(self, tree: SearchTree, node: Node, edge: Edge) -> float:
        span = tree.high - tree.low
        value = edge.value
        normal = 0.5 if value is None or span <= 1e-9 else (value - tree.low) / span
        return self._gumbel(edge) + (50 + max(e.visits for e in node.edges)) * normal
