"""Credit by states: the trajectory's advantage, and what a turn's return is above that of others in the same state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from offline_agent.training.online import advantages
from offline_agent.training.online.credit.judged import Advantages, JudgedAttempt
from offline_agent.training.online.credit.trajectories import by_trajectory

if TYPE_CHECKING:
    from offline_agent.training.online.groups import Group
    from offline_agent.training.online.objectives import Objective
    from offline_agent.training.online.settings import GroupSettings


def by_states(rows: Sequence[JudgedAttempt], objective: Objective, settings: GroupSettings) -> Advantages:
    """Return the trajectories' advantages with `state_advantages` added; drawn turns count in states' means."""
    states = [row.group.attempts[row.place].states for row in rows]
    owners = [row.task_id for row in rows]
    found = state_advantages([row.reward for row in rows], states, owners, objective, settings.state_discount)
    out: Advantages = []
    for row, given, turns in zip(rows, by_trajectory(rows, objective, settings), found, strict=True):
        assert turns is not None  # only scored attempts are rows
        added = None if given is None else zip(given, row.numbers, strict=True)
        out.append(None if added is None else [one + settings.state_weight * turns[number] for one, number in added])
    return out


def state_advantages(
    rewards: Sequence[float | None],
    states: Sequence[Sequence[str | None]],
    groups: Sequence[Hashable],
    objective: Objective,
    discount: float = 1.0,
) -> list[list[float] | None]:
    """Return the advantage of every turn within its state: its return, compared with those of the same state's turns.

    Turn t of T returns discount^(T - 1 - t) times the trajectory's reward. Compared are all turns of a group's scored
    trajectories that were taken in one state, several of one trajectory included, as `advantages.group_advantages`
    compares trajectories: less their mean, divided by their standard deviation where the objective divides (GiGPO, Feng
    et al. 2025, arXiv 2505.10978). 0 for a turn in a state of its own, and for one whose state is not known.

    Args:
        rewards: One for each trajectory; None = it could not be computed.
        states: For each trajectory the fingerprint of the state in which each turn was taken; None = not known.
        groups: Its group, usually the task.
        objective: Says the baseline and the scale; batch_std is that of all returns of all turns.
        discount: In [0, 1].

    Returns:
        For each trajectory one number a turn, or None for an unscored one.

    Raises:
        DataError: A reward is NaN or infinite.
        ValueError: The baseline is a critic's value.
    """
    places: list[Hashable] = []
    returns: list[float] = []
    for row, (reward, visited, group) in enumerate(zip(rewards, states, groups, strict=True)):
        for turn, state in enumerate(visited if reward is not None else ()):
            assert reward is not None
            places.append((row, turn) if state is None else (group, state))
            returns.append(discount ** (len(visited) - 1 - turn) * reward)
    found = iter(advantages.group_advantages(returns, places, objective))
    return [
        None if reward is None else [next(found) or 0.0 for _ in visited]  # None: leave_one_out without another
        for reward, visited in zip(rewards, states, strict=True)
    ]


def shared_states(group: Group) -> tuple[int, int]:
    """Return how many turns of a group's judged members were taken in a state that another turn has too, and all."""
    judged = [one for one, reward in zip(group.attempts, group.rewards, strict=True) if reward is not None]
    seen = Counter(state for one in judged for state in one.states if state is not None)
    return sum(count for count in seen.values() if count > 1), sum(len(one.steps) for one in judged)
