"""Credit by branches: what a turn is worth beside other actions after the same history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from offline_agent.training.online import advantages
from offline_agent.training.online.credit.judged import Advantages, JudgedAttempt

if TYPE_CHECKING:
    from offline_agent.training.online.groups import Group
    from offline_agent.training.online.objectives import Objective
    from offline_agent.training.online.settings import GroupSettings


def by_branches(rows: Sequence[JudgedAttempt], objective: Objective, settings: GroupSettings) -> Advantages:
    """Return A(h, a) of each row's turns, divided as the objective divides; see `branch_advantages`.

    Values and deviations are of the same attempts: all that were judged, those with nothing to learn from included.
    """
    groups = {id(row.group): row.group for row in rows}
    every = [reward for group in groups.values() for reward in group.scored]
    whole = advantages.spread(every, [0] * len(every)).get(0)
    found = {key: branch_advantages(group) for key, group in groups.items()}
    out: Advantages = []
    for row in rows:
        turns = found[id(row.group)][row.place]
        scale = {"group_std": row.group.spread, "batch_std": whole, "none": 1.0}[objective.scale]
        divisor = 1.0 if objective.scale == "none" else (scale or 0.0) + advantages.EPSILON
        out.append(None if turns is None else [turns[number] / divisor for number in row.numbers])
    return out


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
