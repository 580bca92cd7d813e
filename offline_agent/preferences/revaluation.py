"""Ends of a tree judged again: by its own verifier after a fresh replay, or by another judge.

A tree whose verdicts do not repeat is no evidence. Under another judge histories, and how often each was tried, stay
as they are, and every sum is computed anew: an end that n simulations or logged episodes reached is backed up n times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from offline_agent.envs.play import ReplayMismatch
from offline_agent.errors import EnvironmentFault
from offline_agent.preferences.pairs.trajectory import trajectory
from offline_agent.preferences.replayer import BudgetSpent, Replayer
from offline_agent.records import POLICY_CUTS, Verdict, cut_verdict
from offline_agent.search.tree import back_up, reset_value_range

if TYPE_CHECKING:
    from offline_agent.judges.judge import AnyJudge
    from offline_agent.search.tree import Node, SearchTree

EARLIER = "earlier"
"""Key of a verdict's evidence: the verdicts that it replaces, the first one first."""

_OF_THE_VERDICT = ("verifier: ", "the same messages have different outcomes")
"""Beginnings of reasons for a quarantine that another verdict takes away."""

_TOLERANCE = 1e-9  # of a score that is computed in another order
_LEAST = 4  # verdicts of a tree; of those that a coin gives, one in 16 trees would pass


@dataclass(frozen=True, slots=True)
class Revalued:
    """Counts of what another judge said of one tree.

    Attributes:
        judged: Ends with a score now.
        unscored: Ends that the judge could not score: (node, reason).
        raised, lowered: Ends that are a success now and were a failure, and the reverse.
        first: Ends that had no verdict, or none with a score.
    """

    judged: int
    unscored: Sequence[tuple[int, str]]
    raised: int
    lowered: int
    first: int


def revalue(
    tree: SearchTree, judge: AnyJudge, *, by_success: bool = False, gamma: float = 1.0, independent: bool = False
) -> Revalued:
    """Give the ends of a tree a judge's verdicts, and its nodes and edges the values that follow; the tree is changed.

    An end that a limit of the policy cut stays a failure. What is in quarantine stays there, unless a verdict was the
    reason. `Node.closed`, priors and numbers of proposals tell of the search, and stay too.

    Args:
        tree: The tree.
        judge: The judge; it sees each end's earlier verdict as `Trajectory.verdict`.
        by_success: Whether 0 or 1 is backed up, not the score.
        gamma: Discount per step with which values are backed up.
        independent: Whether every end is one of the policy's attempts without search, so that they tell its success.
    """
    visits = {end.id: _visits(tree, end) for end in tree.terminals()}
    for edge in tree.edges:
        if edge.quarantined is not None and edge.quarantined.startswith(_OF_THE_VERDICT):
            edge.quarantined = None
    ends = [end for end in tree.terminals() if end.quarantined is None and end.edge is not None]
    asked = [end for end in ends if end.cut is None]
    before = {end.id: end.verdict for end in asked}
    for end in asked:
        end.verdict = _with_earlier(judge(trajectory(tree, end)), before[end.id])
    _clear(tree)
    for end in ends:
        verdict = cut_verdict(end.cut) if end.cut in POLICY_CUTS else end.verdict
        if verdict is not None and verdict.score is not None:
            value = float(bool(verdict.success)) if by_success else verdict.score
            score, success = float(verdict.score), bool(verdict.success)
            back_up(tree, end, value, score, success, end.cut is not None, gamma, visits[end.id])
            for _ in range(visits[end.id] if independent else 0):
                tree.note_first(verdict, end.cut, end.depth)
    reset_value_range(tree)  # of the values that are left in the end, not of those on the way
    return _counts(asked, before)


def _visits(tree: SearchTree, end: Node) -> int:
    """Return how many simulations or logged episodes ended at a node; at least 1."""
    if tree.stopped == "logs":
        return (end.edge.count if end.edge is not None else 1) - sum(edge.count for edge in end.edges)
    return max(1, end.visits)


def _with_earlier(verdict: Verdict, before: Verdict | None) -> Verdict:
    if before is None:
        return verdict
    kept = {name: value for name, value in before.to_json().items() if name != "evidence"}
    earlier = [*before.evidence.get(EARLIER, ()), kept]
    told = {name: before.evidence[name] for name in ("labels",) if name in before.evidence}
    return replace(verdict, evidence={**verdict.evidence, **told, EARLIER: earlier})


def _clear(tree: SearchTree) -> None:
    tree.simulations = 0
    tree.low, tree.high = float("inf"), float("-inf")
    tree.first_rollouts = []
    for node in tree.nodes:
        node.visits, node.value_sum = 0, 0.0
    for edge in tree.edges:
        edge.visits = edge.verified = edge.successes = edge.truncated = 0
        edge.value_sum = edge.score_sum = 0.0


def _counts(asked: Sequence[Node], before: Mapping[int, Verdict | None]) -> Revalued:
    raised = lowered = first = scored = 0
    unscored: list[tuple[int, str]] = []
    for end in asked:
        verdict, old = end.verdict, before[end.id]
        assert verdict is not None  # given just above
        if verdict.score is None:
            unscored.append((end.id, f"{verdict.verifier}: {verdict.error}"))
            continue
        scored += 1
        if old is None or old.success is None:
            first += 1
        else:
            raised += bool(verdict.success and not old.success)
            lowered += bool(old.success and not verdict.success)
    return Revalued(scored, unscored, raised, lowered, first)


@dataclass(frozen=True, slots=True)
class Rejudged:
    """The result of judging some verdicts of a tree again.

    Attributes:
        verdicts: Number of verdicts of the tree.
        judged: Number of those that were judged again.
        broken: Number of those whose replay broke or could not be judged; they say nothing of the verdict.
        disagreements: One sentence for each verdict or history that did not repeat.
    """

    verdicts: int
    judged: int
    broken: int
    disagreements: tuple[str, ...]


def rejudge(tree: SearchTree, replayer: Replayer, share: float) -> Rejudged:
    """Replay a share of the successes of a tree, shortest first, and some failures, and judge their ends again.

    A verdict repeats if its success is the same and its score differs by at most 1e-9; a history repeats if every
    observation does.

    Args:
        tree: The tree; its environment has a deterministic verifier.
        replayer: Replays the branches, as many as its budget pays for.
        share: Of the successes, in [0, 1], rounded up. Failures make it at least four verdicts a tree, and one
            failure is always among them; 0 = none of either.
    """
    ends = sorted((end for end in tree.terminals() if _scored(end)), key=lambda end: (end.depth, end.id))
    successes = [end for end in ends if end.verdict is not None and end.verdict.success]
    failures = [end for end in ends if end.verdict is not None and not end.verdict.success]
    wanted = math.ceil(share * len(successes))
    chosen = successes[:wanted] + (failures[: max(1, _LEAST - wanted)] if share else [])
    judged = broken = 0
    disagreements: list[str] = []
    for end in chosen:
        try:
            replay = replayer.run(tree.task, end.context.actions())
        except BudgetSpent:
            continue
        except ReplayMismatch as error:
            judged += 1
            disagreements.append(f"node {end.id}: {error}")
            continue
        except EnvironmentFault:
            replay = None
        if replay is None or replay.verdict.score is None:
            broken += 1
            continue
        judged += 1
        assert end.verdict is not None  # `_scored`
        seen = [context.observation for context in end.context.lineage()[1:]]
        if difference := replay.difference(seen, True):
            disagreements.append(f"node {end.id}: {difference[1]}")
        elif reason := replay.other_verdict(end.verdict, _TOLERANCE):
            disagreements.append(f"node {end.id}: {reason}")
    return Rejudged(len(ends), judged, broken, tuple(disagreements))


def _scored(end: Node) -> bool:
    scored = end.verdict is not None and end.verdict.score is not None
    return scored and end.terminated and not end.truncated and end.quarantined is None
