"""Credit by rewards of turns: what the environment, or a judge, says that single turns earned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from offline_agent.training.online import advantages
from offline_agent.training.online.credit.judged import Advantages, JudgedAttempt

if TYPE_CHECKING:
    from offline_agent.rollouts.attempts import Attempt
    from offline_agent.training.online.objectives import Objective
    from offline_agent.training.online.settings import GroupSettings


def by_turn_rewards(rows: Sequence[JudgedAttempt], objective: Objective, settings: GroupSettings) -> Advantages:
    """Return `advantages.turn_advantages` of each row's turns; drawn ones count in returns and means."""
    owners, branched = [row.task_id for row in rows], [row.branched for row in rows]
    found = advantages.turn_advantages([row.earned for row in rows], owners, objective, branched)
    return [
        None if turns is None else [turns[number] for number in row.numbers]
        for turns, row in zip(found, rows, strict=True)
    ]


def turn_rewards(attempt: Attempt, settings: GroupSettings) -> tuple[tuple[float, ...] | None, str | None]:
    """Return the reward of each turn, from the judge or the environment; or None and the reason why there is none."""
    if settings.judge is None:
        given = [step.reward for step in attempt.steps]
        said = tuple(one for one in given if one is not None)
        if len(said) == len(given):
            return said, None
        return None, f"the environment does not say what turn {given.index(None)} of {len(given)} earned"
    trajectory = attempt.trajectory()
    assert trajectory is not None  # it has steps
    try:
        told = [float(one) for one in settings.judge(trajectory)]
    except Exception as error:  # the user's own
        return None, f"the judge of turns failed: {type(error).__name__}: {error}"
    if len(told) != len(attempt.steps) or not all(0 <= one <= 1 for one in told):
        shown = ", ".join(f"{one:g}" for one in told)
        return None, f"the judge of turns gave [{shown}]; allowed: {len(attempt.steps)} numbers in [0, 1]"
    return tuple(one / len(told) for one in told), None
