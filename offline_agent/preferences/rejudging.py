"""Verdicts given again after a fresh replay: a tree whose verdicts do not repeat is no evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_agent.envs.play import ReplayMismatch
from offline_agent.errors import EnvironmentFault
from offline_agent.preferences.replayer import BudgetSpent, Replayer

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
        seen = [context.observation for context in end.context.lineage()[1:]]
        if difference := replay.difference(seen, True):
            disagreements.append(f"node {end.id}: {difference[1]}")
        elif reason := replay.other_verdict(end.verdict, TOLERANCE):
            disagreements.append(f"node {end.id}: {reason}")
    return Rejudged(len(ends), judged, broken, tuple(disagreements))


def _judged(end: Node) -> bool:
    scored = end.verdict is not None and end.verdict.score is not None
    return scored and end.terminated and not end.truncated and end.quarantined is None
