"""Whole branches of a tree: as trajectories, and a success against a failure as a pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from offline_agent.preferences.records import PairKind, PreferencePair, Refusal
from offline_agent.preferences.settings import PAIRS, PairRules
from offline_agent.preferences.statistics import certainty
from offline_agent.records import POLICY_CUTS, Context, Step, Trajectory, Verdict, cut_verdict
from offline_agent.search.nodes import same_turn

if TYPE_CHECKING:
    from offline_agent.search.tree import Edge, Node, SearchTree

_PER_NODE = 2  # pairs that diverge at one node, at most

PairsAndRefusals = tuple[list[PreferencePair], list[Refusal]]


class TrajectoryPairs:
    """A verified success against a verified failure of the same task; docs/pairs.md has the rule.

    The prompt is the history both share, up to the first canonical divergence. Of each pair of actions that diverge
    the shortest success and the failure nearest to it in length are taken.

    Args:
        rules: The keys; a cut failure is one that a limit of the policy's own cut (`records.POLICY_CUTS`).
        certain: Whether one verdict settles an end state; False where the verifier is noisy.
    """

    def __init__(self, rules: PairRules = PAIRS, *, certain: bool = True) -> None:
        self.rules = rules
        self.certain = certain

    def mine(self, tree: SearchTree) -> PairsAndRefusals:
        """Return the trajectory pairs of a tree in the order of the nodes where they diverge."""
        below = _ends_below(tree, self.rules.cut_failures)
        pairs: list[PreferencePair] = []
        refusals: list[Refusal] = []
        for node in tree.nodes:
            found: list[PreferencePair] = []
            for good in node.edges:
                for bad in node.edges:
                    successes, failures = below[0].get(good.id), below[1].get(bad.id)
                    if same_turn(good.key, bad.key) or not successes or not failures:
                        continue
                    pair = self._pair(tree, node, good, bad, successes[0], failures)
                    if isinstance(pair, Refusal):
                        refusals.append(pair)
                    else:
                        found.append(pair)
            found.sort(key=lambda p: (abs(len(p.chosen) - len(p.rejected)), p.chosen_edge, p.rejected_edge))
            pairs += found[:_PER_NODE]
        return pairs, refusals

    def _pair(
        self, tree: SearchTree, node: Node, good: Edge, bad: Edge, success: Node, failures: list[Node]
    ) -> PreferencePair | Refusal:
        name = f"{tree.tree_id}/node {node.id}/edges {good.id}>{bad.id}"
        better = success.verdict
        assert better is not None and better.score is not None
        lower = [end for end in failures if _score(end) < better.score]
        if not lower:
            return Refusal("trajectory", name, "no failure scores lower than the success")
        failure = min(lower, key=lambda end: (abs(end.depth - success.depth), end.id))
        extra, most = success.depth - failure.depth, self.rules.max_extra_steps
        if extra > most:
            why = f"the success is {extra} steps longer than the nearest failure; max_extra_steps={most}"
            return Refusal("trajectory", name, why)
        worse = failure.verdict if failure.cut is None else cut_verdict(failure.cut)
        assert worse is not None and worse.score is not None
        sides = tree.steps(success, after=node), tree.steps(failure, after=node)
        return verified_pair(
            "trajectory", tree, node, sides, (better, worse),
            edges=(good.id, bad.id), sure=certainty(better.score, worse.score, self.certain),
        )  # fmt: skip


def verified_pair(
    kind: PairKind,
    tree: SearchTree,
    node: Node,
    sides: tuple[Sequence[Step], Sequence[Step]],
    verdicts: tuple[Verdict, Verdict],
    *,
    edges: tuple[int | None, int | None],
    sure: float | None,
    prefix: Context | None = None,
) -> PreferencePair:
    """Return a pair whose values are the verdicts on two ends, one roll-out each.

    How sure its first actions alone are is not known.

    Args:
        kind: The rule that made it.
        tree: The tree.
        node: The node after which the sides diverge.
        sides: The steps of the better side and of the other.
        verdicts: On the ends of both.
        edges: The first edge of each side; None where it is not in the tree.
        sure: P(the better end is the better one).
        prefix: The shared history; None = the node's.
    """
    better, worse = verdicts
    assert better.score is not None and worse.score is not None  # no rule takes an end without a score
    return PreferencePair(
        kind, prefix or node.context, tuple(sides[0]), tuple(sides[1]), better.score, worse.score, 1, 1, None, better,
        worse, tree.tree_id, node.id, *edges, rest_confidence=sure,
    )  # fmt: skip


def trajectories(tree: SearchTree) -> Iterator[Trajectory]:
    """Yield every finished branch of a tree that nothing discredits, in the order of the end nodes."""
    for end in () if tree.quarantined is not None else tree.terminals():
        if end.quarantined is None and end.edge is not None:
            yield trajectory(tree, end)


def trajectory(tree: SearchTree, end: Node) -> Trajectory:
    """Return the branch that ends at a node."""
    return Trajectory(
        end.context,
        tree.steps(end),
        end.verdict,
        terminated=end.terminated,
        truncated=end.truncated,
        origin="rollout" if end.greedy or end.context.recorded is not None else "search",
        cut_by=end.cut,
    )


def _score(end: Node) -> float:
    return 0.0 if end.cut is not None or end.verdict is None else end.verdict.score or 0.0


def _ends_below(tree: SearchTree, cut: bool) -> tuple[dict[int, list[Node]], dict[int, list[Node]]]:
    """Verified successes and failures below each edge, by edge id, shortest first; those that were `cut` on request."""
    successes: dict[int, list[Node]] = {}
    failures: dict[int, list[Node]] = {}
    for end in sorted(tree.terminals(), key=lambda end: (end.depth, end.id)):
        verdict = end.verdict
        judged = end.cut is None and end.terminated and verdict is not None and verdict.success is not None
        if not (judged or (cut and end.cut in POLICY_CUTS)) or end.quarantined:
            continue
        won = end.cut is None and verdict is not None and verdict.success
        for edge in tree.path(end):
            (successes if won else failures).setdefault(edge.id, []).append(end)
    return successes, failures
