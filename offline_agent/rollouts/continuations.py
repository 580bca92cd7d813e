"""Plays a given history on to its end, several times: for counterfactual estimates."""

from __future__ import annotations

from collections.abc import Sequence

from offline_agent.records import Step, Task, Verdict
from offline_agent.rollouts.episodes import Episodes
from offline_agent.rollouts.game import Ask
from offline_agent.seeding import derive_seed, mix


def continuations(episodes: Episodes, task: Task, steps: Sequence[Step], n: int) -> list[Verdict]:
    """Return the verdicts of n sampled attempts that begin with given steps.

    Attempt i of a history depends on (the seed of `episodes`, task, actions, i) alone. One that used up its steps
    scores 0; one that could not be judged has no score and says why: its policy failed, its environment broke, hung or
    answered the given steps differently.

    Raises:
        EnvironmentFault: The environment hung too often.
        PolicyError: The policy failed too often in a row.
    """
    history = derive_seed(0, "history", *[step.action.text for step in steps])
    asks = [Ask(task, "sampled", mix(history, i), prefix=tuple(steps)) for i in range(n)]
    verdicts = {attempt.number: attempt.verdict for attempt in episodes.play(asks)}
    return [verdicts[ask.number] for ask in asks]
