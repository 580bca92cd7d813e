"""Ways of credit, one module and one row each: a round's groups become one advantage for each turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from offline_agent.training.online.credit.branches import by_branches
from offline_agent.training.online.credit.judged import Advantages, JudgedAttempt
from offline_agent.training.online.credit.states import by_states
from offline_agent.training.online.credit.trajectories import by_trajectory
from offline_agent.training.online.credit.turn_rewards import by_turn_rewards, turn_rewards

if TYPE_CHECKING:
    from offline_agent.rollouts.attempts import Attempt
    from offline_agent.training.online.objectives import Objective
    from offline_agent.training.online.settings import GroupSettings


class Way(NamedTuple):
    """A way of credit.

    Attributes:
        advantages: Of a round's judged attempts.
        rewards: What each turn of an attempt earned, or None and the reason; None = only the whole has a reward.
        weighs_branches: Its advantages count already how often a branch comes to a turn (`JudgedAttempt.factors`).
    """

    advantages: Callable[[Sequence[JudgedAttempt], Objective, GroupSettings], Advantages]
    rewards: Callable[[Attempt, GroupSettings], tuple[tuple[float, ...] | None, str | None]] | None = None
    weighs_branches: bool = False


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "trajectory": Way(by_trajectory),
        "turn": Way(by_branches, weighs_branches=True),
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
