"""Verdicts given again after a fresh replay: a tree whose verdicts do not repeat is no evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from offline_agent.errors import EnvironmentFault
from offline_agent.preferences.replay import BudgetSpent, Replay, Replayer
from offline_agent.records import Step, Verdict
from offline_agent.search.restore import ReplayMismatch

if TYPE_CHECKING:
    from offline_agent.search.tree import Node, SearchTree

TOLERANCE = 1e-9  # of a score that is computed in another order
_LEAST = 4  # verdicts of a tree; of those that a coin gives, one in 16 trees would pass


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
    ends = sorted((end for end in tree.terminals() if _judged(end)), key=lambda end: (end.depth, end.id))
    successes = [end for end in ends if end.verdict is not None and end.verdict.success]
    failures = [end for end in ends if end.verdict is not None and not end.verdict.success]
    wanted = math.ceil(share * len(successes))
    chosen = successes[:wanted] + (failures[: max(1, _LEAST - wanted)] if share else [])
    judged = broken = 0
    disagreements: list[str] = []
    for end in chosen:
        steps, before = tree.steps(end), tree.root.depth  # a tree may begin after some actions
        try:
            replay = replayer.run(tree.task, end.context.actions())
        except BudgetSpent:
            continue
        except ReplayMismatch as error:
            judged += 1
            disagreements.append(f"node {end.id}: {error}")
            continue
        except EnvironmentFault:
            broken += 1
            continue
        if replay.verdict.score is None:
            broken += 1
            continue
        judged += 1
        assert end.verdict is not None  # `_judged`
        if reason := _difference(steps, end.verdict, replace(replay, steps=replay.steps[before:])):
            disagreements.append(f"node {end.id}: {reason}")
    return Rejudged(len(ends), judged, broken, tuple(disagreements))


def _judged(end: Node) -> bool:
    scored = end.verdict is not None and end.verdict.score is not None
    return scored and end.terminated and not end.truncated and end.quarantined is None


def _difference(steps: Sequence[Step], verdict: Verdict, replay: Replay) -> str | None:
    """Return the first difference between a branch and its replay; None where they are equal."""
    for number, (old, new) in enumerate(zip(steps, replay.steps, strict=False), 1):
        if old.observation != new.observation:
            return f"action {number} was answered differently when it was replayed"
    if len(replay.steps) != len(steps) or not replay.terminated:
        return f"the replay of {len(steps)} actions {'ended sooner' if replay.terminated else 'did not end'}"
    again = replay.verdict
    assert verdict.score is not None and again.score is not None  # both were judged
    if again.success != verdict.success or abs(again.score - verdict.score) > TOLERANCE:
        return f"the verdict was {_told(verdict)} and is {_told(again)} when it is judged again"
    return None


def _told(verdict: Verdict) -> str:
    return f"{verdict.score:.10g} ({'success' if verdict.success else 'failure'})"
