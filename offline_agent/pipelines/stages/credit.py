"""Credit assignment of the online stage, as its keys say: settings, the judge of turns, shares of equal states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from offline_agent import catalog
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.errors import ConfigError
from offline_agent.records import Trajectory

if TYPE_CHECKING:
    from offline_agent.training.online.credit import CreditAssignment
    from offline_agent.training.online.groups import Round

NO_STATES = (
    "rollouts.credit: state compares turns in states of an equal fingerprint, and environment {name} {what}: give its "
    "class a property fingerprint (a hash of the state), or set rollouts.credit=trajectory"
)


def turn_judge(config: RefineGrpoConfig) -> Callable[[Trajectory], Sequence[float]] | None:
    """Return the judge of turns; None = the environment rewards turns. Raises ConfigError."""
    name = config.rollouts.turn_judge
    return None if name is None else catalog.load("rollouts.turn_judge", name)


def credit_of(config: RefineGrpoConfig) -> CreditAssignment:
    """Return how rewards become advantages. Raises ConfigError where the judge of turns cannot be loaded."""
    from offline_agent.training.online.credit import CreditAssignment

    rollouts = config.rollouts
    discount = rollouts.state_discount if rollouts.credit == "state" else rollouts.turn_discount
    return CreditAssignment(rollouts.credit, discount, rollouts.outcome, turn_judge(config), rollouts.state_weight)


def shared_states(config: RefineGrpoConfig, environment: str, made: Round) -> float | None:
    """Return the share of a round's turns in states that another turn of their group has too.

    None where credit is not given by states, or nothing was judged.

    Raises:
        ConfigError: The environment gave no fingerprint in the whole round.
    """
    if config.rollouts.credit != "state":
        return None
    from offline_agent.training.online import credit

    states = [state for attempt in made.attempts for state in attempt.states]
    if states and not any(state is not None for state in states):
        raise ConfigError(NO_STATES.format(name=environment, what="gave None in a whole round"))
    counts = [credit.shared_states(group) for group in made.groups]
    turns = sum(every for _, every in counts)
    return sum(shared for shared, _ in counts) / turns if turns else None
