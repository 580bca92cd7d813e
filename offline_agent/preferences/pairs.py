"""Step pairs: siblings of one node whose order is beyond reasonable doubt. Trajectory pairs are in `branches`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

from offline_agent.errors import ConfigError
from offline_agent.preferences.branches import Mined, TrajectoryPairs, trajectories, trajectory
from offline_agent.preferences.policy_value import Estimate, as_evidence, policy_values
from offline_agent.preferences.refusals import Refusal
from offline_agent.preferences.statistics import PRIOR, Evidence, probability_above
from offline_agent.records import PreferencePair
from offline_agent.search.selection import mix

if TYPE_CHECKING:
    from offline_agent.search.tree import Edge, Node, SearchTree

__all__ = ["StepPairs", "TrajectoryPairs", "trajectories", "trajectory"]

CALL_FAULTS = frozenset(
    {"unknown_tool", "bad_arguments", "invalid_json", "bad_call", "several_calls", "empty", "no_end"}
)
"""Faults of the turn itself: a tool that exists, called as its schema asks, never answers with one of them."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One executed child as a candidate: what its rollouts say of it, and what the policy-weighted values say."""

    edge: Edge
    evidence: Evidence
    opinion: Evidence


class StepPairs:
    """Pairs of siblings whose order is beyond reasonable doubt (algorithms.md section 4, rule 1).

    A rollout that used up its steps counts as one that scored 0, as it does in the search. Since a search visits what
    it likes, its means compare siblings unfairly; a second opinion from the same tree, weighted by the policy's
    proposals instead of by visits (`policy_value`), has to agree. A child below which nothing is left to learn has no
    use for more visits: its policy-weighted value and that value's own uncertainty stand for it.

    Args:
        min_visits: Rollouts each side needs, unless it is known exactly or closed.
        min_gap: Least difference of the two mean values.
        confidence: Least P(Q_w > Q_l) under Beta(prior, prior) posteriors, by the rollouts and by the second opinion;
            the lower of the two is stored.
        per_node: Most pairs of one node.
        prior: Parameter of the symmetric Beta prior.
        value: What a rollout is worth: its `reward` (partial credit counts as a part of a success) or `success`.
        second_opinion: Whether the policy-weighted values are asked; False leaves closed children to `min_visits` too.
        exact_terminals: Whether one verdict settles a child that ends the episode; False where the verifier is noisy.
        value_source: Which values decide a pair's order and gap, and are stored: those of the `search`, or `mixed` with
            the critic's scores as in AgentQ (`selection.mix`; an exact value stands as it is). Confidence is always
            that of the rollouts.
        critic_alpha: Weight of the search in mixed values; see `selection.mix`.

    Raises:
        ConfigError: A number is out of its range.
    """

    def __init__(
        self,
        min_visits: int = 3,
        min_gap: float = 0.2,
        confidence: float = 0.9,
        per_node: int = 2,
        prior: float = PRIOR,
        second_opinion: bool = True,
        value: Literal["reward", "success"] = "reward",
        exact_terminals: bool = True,
        value_source: Literal["search", "mixed"] = "search",
        critic_alpha: float | None = None,
    ) -> None:
        faults = [
            *([f"min_visits must be at least 1, got {min_visits!r}"] if min_visits < 1 else []),
            *([f"min_gap must be in [0, 1], got {min_gap!r}"] if not 0 <= min_gap <= 1 else []),
            *([f"confidence must be in [0.5, 1], got {confidence!r}"] if not 0.5 <= confidence <= 1 else []),
            *([f"per_node must be at least 1, got {per_node!r}"] if per_node < 1 else []),
            *([f"prior must be above 0, got {prior!r}"] if prior <= 0 else []),
            *([f"value must be 'reward' or 'success', got {value!r}"] if value not in ("reward", "success") else []),
            *(
                [f"value_source must be 'search' or 'mixed', got {value_source!r}"]
                if value_source not in ("search", "mixed")
                else []
            ),
        ]
        if faults:
            raise ConfigError(faults)
        self.min_visits = min_visits
        self.min_gap = min_gap
        self.confidence = confidence
        self.per_node = per_node
        self.prior = prior
        self.second_opinion = second_opinion
        self.value = value
        self.exact_terminals = exact_terminals
        self.value_source = value_source
        self.critic_alpha = critic_alpha

    def mine(self, tree: SearchTree) -> Mined:
        """Return the step pairs of a tree in the order of its nodes, and what was refused: one entry per rule."""
        pairs: list[PreferencePair] = []
        reasons: dict[str, list[int]] = {}
        policy = policy_values(tree, self.value == "success") if self.second_opinion else {}
        for node in tree.nodes:
            if len(node.edges) >= 2 and node.quarantined is None:
                pairs += self._of_node(tree, node, policy, reasons)
        refusals = [
            Refusal("step", tree.tree_id, reason, {"candidates": len(nodes), "nodes": sorted(set(nodes))})
            for reason, nodes in sorted(reasons.items())
        ]
        return pairs, refusals

    def evidence(self, edge: Edge) -> Evidence:
        """Return what the rollouts through an edge say: their scores, or the end's verdict where that is exact."""
        if self._exact(edge):
            assert edge.child is not None and edge.child.verdict is not None
            verdict = edge.child.verdict
            score = float(verdict.success is True) if self.value == "success" else float(verdict.score or 0.0)
            return Evidence(score, 1.0 - score, known=score)
        total = float(edge.successes) if self.value == "success" else edge.score_sum
        # Sums of floats can leave [0, n] by a rounding error.
        total = min(max(total, 0.0), float(edge.verified))
        return Evidence(total, _rollouts(edge) - total)

    def _of_node(
        self, tree: SearchTree, node: Node, policy: Mapping[int, Estimate], reasons: dict[str, list[int]]
    ) -> list[PreferencePair]:
        sides: list[_Side] = []
        for edge in node.edges:
            reason = self._unfit(edge, edge.id in policy)
            if reason is None:
                sides.append(self._side(edge, policy.get(edge.id)))
            elif edge.child is not None:
                reasons.setdefault(reason, []).append(node.id)
        pairs: list[PreferencePair] = []
        for one, other in combinations(sides, 2):
            pair = self._pair(tree, node, one, other)
            if isinstance(pair, str):
                reasons.setdefault(pair, []).append(node.id)
            else:
                pairs.append(pair)
        pairs.sort(key=lambda p: (-p.confidence, p.q_rejected - p.q_chosen, p.chosen_edge, p.rejected_edge))
        if len(pairs) > self.per_node:
            reasons.setdefault(f"more than {self.per_node} pairs of its node", []).append(node.id)
        return pairs[: self.per_node]

    def _side(self, edge: Edge, estimate: Estimate | None) -> _Side:
        evidence = self.evidence(edge)
        if estimate is None or evidence.known is not None:
            return _Side(edge, evidence, evidence)
        if edge.closed:
            settled = as_evidence(estimate)
            return _Side(edge, settled, settled)
        return _Side(edge, evidence, as_evidence(estimate, evidence.count))

    def _value(self, side: _Side) -> float:
        """Return what a side is worth in the order of the pairs."""
        mean = side.evidence.mean
        if self.value_source == "mixed" and side.evidence.known is None:
            mean = mix(mean, _rollouts(side.edge), side.edge.critic, self.critic_alpha)
        assert mean is not None  # a side has rollouts
        return mean

    def _exact(self, edge: Edge) -> bool:
        return self.exact_terminals and edge.exact

    def _unfit(self, edge: Edge, estimated: bool) -> str | None:
        """Why an edge can be neither side; None where it can."""
        if edge.child is None:
            return "never executed"
        if edge.quarantined is not None:
            return "quarantined"
        if edge.child.cut is not None:
            return f"cut by {edge.child.cut}"
        if self._exact(edge) or _rollouts(edge) >= self.min_visits:
            return None
        if edge.closed and estimated and _rollouts(edge):
            return None
        return f"fewer than {self.min_visits} rollouts"

    def _pair(self, tree: SearchTree, node: Node, one: _Side, other: _Side) -> PreferencePair | str:
        if one.edge.key == other.edge.key:
            return "same canonical action"
        better, worse = one, other
        high, low = self._value(one), self._value(other)
        if high < low:
            better, worse, high, low = other, one, low, high
        if high - low < self.min_gap:
            return f"gap below {self.min_gap:g}"
        sure = probability_above(better.evidence, worse.evidence, self.prior)
        if sure < self.confidence:
            return f"P(Q_w > Q_l) below {self.confidence:g}"
        if self.second_opinion:
            second = probability_above(better.opinion, worse.opinion, self.prior)
            if second < self.confidence:
                return f"the policy-weighted values give P(Q_w > Q_l) below {self.confidence:g}"
            sure = min(sure, second)
        if _contradicts(better.edge.critic, worse.edge.critic):
            return "the critic says the opposite"
        if better.edge.fault in CALL_FAULTS:
            return "the better action is a malformed call"
        reason = (
            f"sibling actions with values {high:.3f} and {low:.3f} over {_count(better)} and {_count(worse)} "
            f"rollouts: P(Q_w > Q_l) = {sure:.3f}"
        )
        return PreferencePair(
            "step",
            node.context,
            _steps(tree, better.edge),
            _steps(tree, worse.edge),
            high,
            low,
            _count(better),
            _count(worse),
            sure,
            _verdict(better),
            _verdict(worse),
            tree.tree_id,
            node.id,
            better.edge.id,
            worse.edge.id,
            reason=reason,
        )


def _steps(tree: SearchTree, edge: Edge) -> Any:
    assert edge.child is not None
    return tree.steps(edge.child, after=edge.parent)


def _verdict(side: _Side) -> Any:
    child = side.edge.child
    return child.verdict if child is not None and side.evidence.known is not None else None


def _count(side: _Side) -> int:
    return max(1, _rollouts(side.edge))


def _rollouts(edge: Edge) -> int:
    """Rollouts that say something of an edge: judged ones, and those that a limit of the policy's own cut."""
    return edge.verified + edge.truncated


def _contradicts(better: float | None, worse: float | None) -> bool:
    return better is not None and worse is not None and better < worse
