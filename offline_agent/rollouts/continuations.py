"""Plays a given history on to its end, several times: for counterfactual estimates."""

from __future__ import annotations

from collections.abc import Sequence

from offline_agent.records import Step, Task, Verdict
from offline_agent.rollouts.episodes import Episodes
from offline_agent.rollouts.playing import Ask


def continuations(episodes: Episodes, task: Task, steps: Sequence[Step], n: int) -> list[Verdict]:
    """Return the verdicts of n sampled attempts that begin with given steps.

    Attempt i depends on (the seed of `episodes`, task, steps, i) alone, and what it draws at a depth not even on the
    steps: values of two histories differ by what the histories do, less by chance. One that used up its steps scores
    0; one that could not be judged has no score and says why: its policy failed, its environment broke, hung or
    answered the given steps differently.

    Raises:
        EnvironmentFault: The environment hung too often.
        PolicyError: The policy failed too often in a row.
    """
    asks = [Ask(task, "sampled", i, prefix=tuple(steps)) for i in range(n)]
    verdicts = {attempt.number: attempt.verdict for attempt in episodes.play(asks)}
    return [verdicts[i] for i in range(n)]
