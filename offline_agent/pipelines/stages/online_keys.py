"""Keys of the online stage: contradictions between them, and the settings that they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from offline_agent import catalog
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.errors import ConfigError, collect
from offline_agent.records import Trajectory
from offline_agent.runner.components import make_reward
from offline_agent.training.online.objectives import Objective
from offline_agent.training.online.settings import GroupSettings, OnlineSettings

if TYPE_CHECKING:
    from offline_agent.envs.base import EnvSpec
    from offline_agent.training.online.groups import RankingReward

NO_STATES = (
    "rollouts.credit: state compares turns in states of an equal fingerprint, and environment {name} {what}: give its "
    "class a property fingerprint (a hash of the state), or set rollouts.credit=trajectory"
)


def turn_judge(config: RefineGrpoConfig) -> Callable[[Trajectory], Sequence[float]] | None:
    """Return the judge of turns; None = the environment rewards turns. Raises ConfigError."""
    name = config.rollouts.turn_judge
    return None if name is None else catalog.load("rollouts.turn_judge", name)


def faults(config: RefineGrpoConfig) -> list[str]:
    """Return contradictions between the keys, before anything is loaded."""
    found = [*_conflicts(config)]
    reward = make_reward if config.reward.ranking.name == "none" else make_ranking
    collect(found, lambda: reward(config))
    collect(found, lambda: turn_judge(config))
    return found


def _conflicts(config: RefineGrpoConfig) -> Iterator[str]:
    sampler, rollouts, correction = config.sampler, config.rollouts, config.sampler.weights
    hot = sorted({t for t in (rollouts.temperature, rollouts.last_temperature) if t not in (1.0, None)}, key=float)  # type: ignore[arg-type]
    if correction != "off" and hot:
        yield (
            f"sampler.correction: {correction} compares log-probabilities, which {sampler.name} gives at "
            f"temperature 1, but rollouts.temperature is {', '.join(map(str, hot))}; set it to 1, or "
            "sampler.correction=off"
        )
    yield from _reward_conflicts(config)
    if rollouts.credit in ("turn", "state"):
        chosen = objective_of(config)
        if rollouts.credit == "state":
            if chosen.baseline not in ("mean", "leave_one_out"):
                yield (
                    f"rollouts.credit: state takes means of states off, and objective {chosen.name} has baseline "
                    f"{chosen.baseline}; set rollouts.credit=trajectory, or objective.baseline=mean or leave_one_out"
                )
            return
        if chosen.baseline == "value":
            yield (
                f"rollouts.credit: turn compares branches, and objective {chosen.name} asks its critic; set "
                "rollouts.credit=trajectory, or an objective without a critic"
            )
        if chosen.overlong_soft is not None:
            yield (
                "rollouts.credit: turn takes its advantages from what the branches came to, which overlong shaping "
                "does not change; set rollouts.credit=trajectory, or leave out objective.overlong_soft and _hard"
            )


def objective_of(config: RefineGrpoConfig) -> Objective:
    """Return the objective."""
    return config.objective.chosen(config.rollouts.max_steps * config.rollouts.max_tokens)


def group_settings(config: RefineGrpoConfig) -> GroupSettings:
    """Return the settings of the rounds; raises ConfigError where the judge of turns cannot be loaded."""
    return GroupSettings(**dict(config.rollouts), rounds=config.rounds, judge=turn_judge(config))


def online_settings(config: RefineGrpoConfig) -> OnlineSettings:
    """Return the settings of the updates made of rounds."""
    return OnlineSettings(config.rounds, config.objective, config.critic, config.sampler, config.offline)


def _reward_conflicts(config: RefineGrpoConfig) -> Iterator[str]:
    """Yield contradictions between the keys of the reward and of the judge of turns."""
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


def make_ranking(config: RefineGrpoConfig) -> RankingReward | None:
    """Return the ranking of a group's attempts; None where none is configured.

    Raises:
        ConfigError: The comparator cannot be made, or its weight could put a failure above a success.
    """
    from offline_agent.judges.models.comparing import make_comparator
    from offline_agent.training.online.groups import ALONE, RankingReward, most_weight

    section, faults = config.reward, list[str]()
    if section.ranking.name == "none":
        return None
    given = dict(section.ranking.model_extra or {})
    reward = collect(faults, lambda: make_reward(config))
    compare = collect(faults, lambda: make_comparator("reward.ranking", section.ranking.name, given))
    most = most_weight(1.0 if reward is None else reward.gap)
    if section.ranking_weight > most + 1e-9 and (section.ranking_weight != ALONE or reward is not None):
        faults.append(
            f"reward.ranking_weight: got {section.ranking_weight:g}, allowed: up to {most:.3g}, so that every success "
            "gets more than any failure; lower it" + (", or the weights of reward.format, tool, length and "
            "failure_ceiling" if reward is not None else "")
        )  # fmt: skip
    if faults:
        raise ConfigError(faults)
    return RankingReward(compare, section.ranking_weight, config.limits.workers)


def ranking_faults(config: RefineGrpoConfig, spec: EnvSpec) -> Iterator[str]:
    """Yield contradictions between the weight of ranks and who says the outcome."""
    if config.reward.ranking.name == "none":
        return
    judged, weight = spec.judge is not None or hasattr(spec.cls, "get_reward"), config.reward.ranking_weight
    if judged and weight == 1:
        yield (
            f"reward.ranking_weight: 1 leaves out the outcome, which {spec.name} says; allowed: up to 0.5, so that "
            "every success gets more than any failure"
        )
    if not judged and weight < 1:
        yield (
            f"reward.ranking_weight: got {weight:g}, but {spec.name} has no get_reward, and there is no judge: set 1, "
            "the ranks alone, or name a judge"
        )
    if weight == 1 and config.rollouts.branches:
        yield "rollouts.branches: branches leave judged attempts, and with reward.ranking_weight=1 none is; set it to 0"
