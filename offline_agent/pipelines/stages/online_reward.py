"""The online stage's reward: what its keys contradict, and who judges single turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from offline_agent import catalog
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.records import Trajectory


def reward_conflicts(config: RefineGrpoConfig) -> Iterator[str]:
    """Yield what the keys of the reward and of the judge of turns contradict."""
    rollouts, shaped = config.rollouts, dict(config.reward.model_extra or {})
    if shaped and rollouts.reward == "success":
        yield (
            f"reward: {', '.join(sorted(shaped))} and rollouts.reward=success both say what an episode is worth; leave "
            "one of them out (reward.failure_ceiling=0 gives no partial credit either)"
        )
    if shaped.get("length_rule") == "dapo" and config.objective.overlong_soft is not None:
        yield (
            "reward.length_rule: dapo is the punishment that objective.overlong_soft and _hard add; name one of the two"
        )
    if rollouts.turn_judge is None:
        return
    if rollouts.credit != "turn_reward":
        yield f"rollouts.turn_judge: credit={rollouts.credit} does not ask it; set rollouts.credit=turn_reward"
    if rollouts.outcome < 1:
        yield (
            f"rollouts.outcome: got {rollouts.outcome:g}, with rollouts.turn_judge at least 1: what a judge says of "
            "turns adds up to 1 at most, and must not outweigh the outcome"
        )


def turn_judge(config: RefineGrpoConfig) -> Callable[[Trajectory], Sequence[float]] | None:
    """Return who says what turns earned; None = the environment. Raises ConfigError."""
    name = config.rollouts.turn_judge
    return None if name is None else catalog.load("rollouts.turn_judge", name)
