"""Step pairs: siblings of one node whose order is beyond reasonable doubt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

from offline_agent.preferences.pairs.comparison import Siblings, Side, rollouts
from offline_agent.preferences.pairs.trajectory import PairsAndRefusals
from offline_agent.preferences.records import PreferencePair, Refusal
from offline_agent.preferences.settings import PAIRS, PairRules
from offline_agent.preferences.statistics import CONCENTRATIONS
from offline_agent.search.nodes import ANSWERED, same_turn, turn_key

if TYPE_CHECKING:
    from offline_agent.search.tree import Edge, Node, SearchTree

CALL_FAULTS = frozenset(
    {"unknown_tool", "bad_arguments", "invalid_json", "bad_call", "several_calls", "empty", "no_end"}
)
"""Faults of the turn itself: a tool that exists, called as its schema asks, never answers with one of them."""


class StepPairs:
    """Pairs of siblings whose order is beyond reasonable doubt; docs/pairs.md has the rule.

    A rollout that used up its steps counts as one that scored 0, as it does in the search. Since a search visits what
    it likes, its means compare siblings unfairly; a second opinion from the same tree, weighted by the policy's
    proposals instead of by visits (`policy_values`), has to agree. The values stored are those of `Siblings.value`.

    The confidence is P(Q_w > Q_l) by the rollouts and by the second opinion, both shrunk towards the node's mean; the
    lower of the two is stored. A decisive rollout needs `exact_terminals`: the value of what it began with is above 0,
    that of a failure which ends the episode is not.

    Args:
        rules: The keys.
        concentrations: How alike the actions of one node may be (`preferences.statistics`); (0,) = what their siblings
            did says nothing of them.
        value: The value of a rollout: its `reward` (partial credit counts as a part of a success) or `success`.
        second_opinion: Whether the policy-weighted values are asked; False leaves closed children to `min_visits` too.
        exact_terminals: Whether one verdict settles a child that ends the episode; False where the verifier is noisy.
    """

    def __init__(
        self,
        rules: PairRules = PAIRS,
        *,
        concentrations: Sequence[float] = CONCENTRATIONS,
        second_opinion: bool = True,
        value: Literal["reward", "success"] = "reward",
        exact_terminals: bool = True,
    ) -> None:
        self.rules = rules
        self.compare = partial(
            Siblings, value=value, exact_terminals=exact_terminals, second_opinion=second_opinion,
            concentrations=concentrations,
        )  # fmt: skip

    def mine(self, tree: SearchTree, compared: Siblings | None = None) -> PairsAndRefusals:
        """Return the step pairs of a tree in the order of its nodes, and what was refused: one entry per rule.

        Args:
            tree: The tree.
            compared: The result of `compare`, where the caller has it already.
        """
        pairs: list[PreferencePair] = []
        reasons: dict[str, list[int]] = {}
        compared = compared or self.compare(tree)
        for node in tree.nodes:
            if len(node.edges) >= 2 and node.quarantined is None:
                pairs += self._of_node(tree, node, compared, reasons)
        refusals = [
            Refusal("step", tree.tree_id, reason, {"candidates": len(nodes), "nodes": sorted(set(nodes))})
            for reason, nodes in sorted(reasons.items())
        ]
        return pairs, refusals

    def _of_node(
        self, tree: SearchTree, node: Node, compared: Siblings, reasons: dict[str, list[int]]
    ) -> list[PreferencePair]:
        sides: list[Side] = []
        answered = {turn_key(edge.key) for edge in node.edges if ANSWERED in edge.key}
        for edge in node.edges:
            reason = self._unfit(edge, compared)
            if turn_key(edge.key) in answered:  # its values would be those of the answer as well
                reason = "the world answered it differently in another episode"
            few = reason is not None and reason == self._few and self.rules.decisive
            if reason is None or (few and compared.evidence(edge).successes > 0):
                sides.append(compared.side(edge))
            elif edge.child is not None:
                reasons.setdefault(reason, []).append(node.id)
        pairs: list[PreferencePair] = []
        for one, other in combinations(sides, 2):
            pair = self._pair(tree, node, compared, one, other)
            if isinstance(pair, str):
                reasons.setdefault(pair, []).append(node.id)
            else:
                pairs.append(pair)
        pairs.sort(key=lambda p: (-(p.confidence or 0.0), p.q_rejected - p.q_chosen, p.chosen_edge, p.rejected_edge))
        if len(pairs) > self.rules.per_node:
            reasons.setdefault(f"more than {self.rules.per_node} pairs of its node", []).append(node.id)
        return pairs[: self.rules.per_node]

    def _unfit(self, edge: Edge, compared: Siblings) -> str | None:
        """Return why an edge can be neither side; None where it can."""
        if edge.child is None:
            return "never executed"
        if edge.quarantined is not None:
            return "quarantined"
        if edge.child.cut is not None:
            return f"cut by {edge.child.cut}"
        if compared.exact(edge) or rollouts(edge) >= self.rules.min_visits:
            return None
        if compared.settled(edge) and rollouts(edge):
            return None
        return self._few

    @property
    def _few(self) -> str:
        return f"fewer than {self.rules.min_visits} rollouts"

    def _settled(self, compared: Siblings, better: Side, worse: Side) -> bool:
        """Return whether a success after one action decides against a failure that the other one is."""
        return self.rules.decisive and worse.evidence.known == 0.0 and compared.evidence(better.edge).successes > 0

    def _pair(self, tree: SearchTree, node: Node, compared: Siblings, one: Side, other: Side) -> PreferencePair | str:
        if same_turn(one.edge.key, other.edge.key):
            return "same canonical action"
        better, worse = one, other
        if (one.evidence.mean or 0.0) < (other.evidence.mean or 0.0):
            better, worse = other, one
        if (better.evidence.mean or 0.0) <= (worse.evidence.mean or 0.0):  # a prior alone makes no order
            return f"gap below {self.rules.min_gap:g}"
        sure, second = compared.sureness(better, worse)
        if self._settled(compared, better, worse):
            sure = second = 1.0
        elif few := [side for side in (one, other) if self._unfit(side.edge, compared) is not None]:
            return self._unfit(few[0].edge, compared) or self._few
        if sure < self.rules.confidence:
            return f"P(Q_w > Q_l) below {self.rules.confidence:g}"
        if second < self.rules.confidence:
            return f"the policy-weighted values give P(Q_w > Q_l) below {self.rules.confidence:g}"
        sure = min(sure, second)
        high, low = compared.value(better), compared.value(worse)
        if high <= low or high - low < self.rules.min_gap:
            return f"gap below {self.rules.min_gap:g}"
        if _contradicts(better.edge.critic, worse.edge.critic):
            return "the critic says the opposite"
        if better.edge.fault in CALL_FAULTS:
            return "the better action is a malformed call"
        if better.edge.fault is not None:  # by few rollouts it may look better than a call that wastes a step
            return "the better action is a call that the tool refused"
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
        )


def _steps(tree: SearchTree, edge: Edge) -> Any:
    assert edge.child is not None
    return tree.steps(edge.child, after=edge.parent)


def _verdict(side: Side) -> Any:
    child = side.edge.child
    return child.verdict if child is not None and side.evidence.known is not None else None


def _count(side: Side) -> int:
    return max(1, rollouts(side.edge))


def _contradicts(better: float | None, worse: float | None) -> bool:
    return better is not None and worse is not None and better < worse
