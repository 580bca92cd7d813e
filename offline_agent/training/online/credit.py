"""Credit assignment: rewards of single turns, and advantages of turns in groups with branches. Numbers, no tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from offline_agent.records import Trajectory

if TYPE_CHECKING:
    from offline_agent.rollouts.attempts import Attempt
    from offline_agent.training.online.groups import Group


@dataclass(frozen=True)
class CreditAssignment:
    """Settings of how a trajectory's reward becomes its tokens' advantages.

    Attributes:
        by: trajectory: one advantage for all of it. turn: one for each turn, from the branches of its group.
            turn_reward: one for each turn, from what the environment says that single calls earned; with a critic, what
            it learns.
        discount: Factor per turn on the rewards of later turns; for turn_reward without a critic.
        outcome: The share of the whole's reward that is added to what the last turn earned; turn_reward. 0 where the
            environment's rewards of single calls already add up to it.
        judge: Says of a trajectory what each turn earned, in [0, 1], in place of the environment; turn_reward. A turn
            gets this divided by the number of turns: all together earn 1 at most.
    """

    by: Literal["trajectory", "turn", "turn_reward"] = "trajectory"
    discount: float = 1.0
    outcome: float = 1.0
    judge: Callable[[Trajectory], Sequence[float]] | None = None


TRAJECTORY = CreditAssignment()


def turn_rewards(attempt: Attempt, credit: CreditAssignment) -> tuple[tuple[float, ...] | None, str | None]:
    """Return the reward of each turn, from the judge or the environment; or None and the reason why there is none."""
    if credit.judge is None:
        given = [step.reward for step in attempt.steps]
        said = tuple(one for one in given if one is not None)
        if len(said) == len(given):
            return said, None
        return None, f"the environment does not say what turn {given.index(None)} of {len(given)} earned"
    trajectory = attempt.trajectory()
    assert trajectory is not None  # it has steps
    try:
        told = [float(one) for one in credit.judge(trajectory)]
    except Exception as error:  # the user's own
        return None, f"the judge of turns failed: {type(error).__name__}: {error}"
    if len(told) != len(attempt.steps) or not all(0 <= one <= 1 for one in told):
        shown = ", ".join(f"{one:g}" for one in told)
        return None, f"the judge of turns gave [{shown}]; allowed: {len(attempt.steps)} numbers in [0, 1]"
    return tuple(one / len(told) for one in told), None


def branch_advantages(group: Group) -> list[list[float] | None]:
    """Return the advantage of every turn of every member: its reward less that of other actions after the same history.

    Compared are the turns at which members part: the first of those that began at the beginning with one another, and
    the first of a branch's own with its source and with the branches that left it there. All other turns get 0.
    Branches are drawn evenly over the turns of their sources, so a turn is divided by its chance to be compared: of a
    source of R with T turns in all, 1 - (1 - 1/T)^B that one of B branches left it there; of a branch, R/T. Then the
    expected gradient, summed over the members, is (R + B) times the policy gradient (checked by enumeration in
    `tests/unit/training/online/test_branches.py`). None for a member that nobody judged.

    Args:
        group: Its members share histories where one branched from another.
    """
    judged = [(one, reward) for one, reward in zip(group.attempts, group.rewards, strict=True) if reward is not None]
    roots = [(one.number, reward) for one, reward in judged if one.branch is None]
    left: dict[tuple[int, int], list[tuple[int, float]]] = {}  # members by the history that they branched from
    for one, reward in judged:
        if one.branch is not None:
            left.setdefault(one.branch, []).append((one.number, reward))
    turns, branches = group.branching_turns, len(judged) - len(roots)
    chance = 1 - (1 - 1 / turns) ** branches if turns and branches else 1.0
    mean_turns = group.mean_turns
    out: list[list[float] | None] = []
    for one, worth in zip(group.attempts, group.rewards, strict=True):
        if worth is None:
            out.append(None)
            continue
        found = [0.0] * len(one.steps)
        if one.branch is None:
            for turn in range(len(found)):
                if turn == 0 and len(roots) > 1:
                    found[turn] = _over(worth, one.number, roots)
                else:
                    found[turn] = _over(worth, one.number, left.get((one.number, turn), ())) / chance
        elif one.branch[1] < len(found):
            source, turn = one.branch
            if turn == 0:
                rivals = roots + [each for (_, at), there in left.items() if at == 0 for each in there]
            else:
                rivals = [each for each in roots if each[0] == source] + left[one.branch]
            found[turn] = mean_turns * _over(worth, one.number, rivals)
        out.append(found)
    return out


def _over(reward: float, number: int, members: Sequence[tuple[int, float]]) -> float:
    """Return a member's reward less the mean of the others'; 0 without any."""
    others = [each for other, each in members if other != number]
    return reward - sum(others) / len(others) if others else 0.0
