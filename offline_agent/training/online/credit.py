"""Credit: a round's groups become one advantage for each turn; one function and one row of `WAYS` for each way.

Numbers, no tensors; the arithmetic of groups is in `advantages`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from offline_agent.training.online import advantages

if TYPE_CHECKING:
    from offline_agent.rollouts.attempts import Attempt
    from offline_agent.training.online.groups import Group
    from offline_agent.training.online.objectives import Objective
    from offline_agent.training.online.settings import GroupSettings


@dataclass(frozen=True)
class JudgedAttempt:
    """A judged attempt; without ids where nothing can be learnt from it, and it only is in its group's mean."""

    group: Group
    place: int
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logps: tuple[float, ...] | None
    reward: float
    earned: tuple[float, ...] | None = None
    starts: tuple[int, ...] = ()

    @property
    def turns(self) -> tuple[int, ...]:
        """Lengths of the runs of agent tokens; between two turns there always is a prompt or an observation."""
        return tuple(sum(1 for _ in run) for own, run in groupby(self.mask) if own)

    @property
    def numbers(self) -> list[int]:
        """The turns that these are, among all of the attempt's."""
        return spoken(self.group.attempts[self.place])

    @property
    def versions(self) -> tuple[int, ...]:
        """`TrainingSample.versions`."""
        found = self.group.attempts[self.place].versions
        return tuple(found[number] for number in self.numbers) if found else ()

    @property
    def task_id(self) -> str:
        """Its task, which is its group."""
        return self.group.task.task_id

    @property
    def own_earned(self) -> tuple[float, ...] | None:
        """`TrainingSample.earned`."""
        if self.earned is None:
            return None
        found, numbers = [0.0] * len(self.numbers), self.numbers
        for number, reward in enumerate(self.earned) if numbers else ():
            found[max(0, bisect_right(numbers, number) - 1)] += reward
        return tuple(found)


def spoken(attempt: Attempt) -> list[int]:
    """Return the turns of which a token was sampled: not even an end is possible, and leaves nothing in the mask."""
    return [number for number, step in enumerate(attempt.steps) if step.action.token_ids != ()]


Advantages = list[list[float] | None]
"""For each judged attempt one number for each of `JudgedAttempt.numbers`; None = it has none."""


def by_trajectory(rows: Sequence[JudgedAttempt], objective: Objective, settings: GroupSettings) -> Advantages:
    """Return the advantage of each row, once for each of its turns; see `advantages.group_advantages`."""
    whole = advantages.group_advantages([row.reward for row in rows], [row.task_id for row in rows], objective)
    return [None if one is None else [one] * len(row.numbers) for one, row in zip(whole, rows, strict=True)]


def by_states(rows: Sequence[JudgedAttempt], objective: Objective, settings: GroupSettings) -> Advantages:
    """Return the trajectories' advantages with `state_advantages` added."""
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


def by_turn_rewards(rows: Sequence[JudgedAttempt], objective: Objective, settings: GroupSettings) -> Advantages:
    """Return `advantages.turn_advantages` of each row's turns; drawn ones count in returns and means."""
    found = advantages.turn_advantages([row.earned for row in rows], [row.task_id for row in rows], objective)
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


class Way(NamedTuple):
    """A way of credit.

    Attributes:
        advantages: Of a round's judged attempts.
        rewards: What each turn of an attempt earned, or None and the reason; None = only the whole has a reward.
    """

    advantages: Callable[[Sequence[JudgedAttempt], Objective, GroupSettings], Advantages]
    rewards: Callable[[Attempt, GroupSettings], tuple[tuple[float, ...] | None, str | None]] | None = None


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "trajectory": Way(by_trajectory),
        "turn_reward": Way(by_turn_rewards, turn_rewards),
        "state": Way(by_states),
    }
)
"""By the name in `rollouts.credit`; docs/objectives.md has a row for each."""


def assign(rows: Sequence[JudgedAttempt], objective: Objective, settings: GroupSettings) -> Advantages:
    """Return the advantages of a round's judged attempts; 0 where a critic has to be asked first."""
    if objective.needs_values:
        return [[0.0] * len(row.numbers) for row in rows]
    return WAYS[settings.credit].advantages(rows, objective, settings)
