"""The composite reward and the judge of turns in the online stage: what they give, and what contradicts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from offline_agent.config.loading import load
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.judges.rewards import CompositeReward
from offline_agent.pipelines import refine_grpo
from offline_agent.pipelines.stages.online import turn_judge
from offline_agent.records import Action, Trajectory
from offline_agent.rollouts.attempts import Attempt
from offline_agent.training.online.groups import RoundSampler
from offline_agent.training.online.objectives import objective
from offline_agent.training.online.settings import GroupSettings
from tests.unit.training.online.test_groups import POOL, attempt


def generous(trajectory: Trajectory) -> list[float]:
    """Judge turns."""
    return [1.0 for _ in trajectory.steps]


def test_an_episode_is_worth_what_the_composite_reward_says_of_it_also_where_it_was_cut() -> None:
    def play(asks: Sequence[object], number: int) -> list[Attempt]:
        made = [attempt(ask, reward) for ask, reward in zip(asks, (1.0, 0.0, None, 0.0, 0.0), strict=True)]  # type: ignore[arg-type]
        bad = Action("{", fault="invalid_json")
        made[3] = replace(made[3], steps=(replace(made[3].steps[0], action=bad),), truncated=True, cut_by="tokens")
        made[4] = replace(made[4], steps=(), context=made[4].context.parent, truncated=True, cut_by="context")  # type: ignore[union-attr]
        return made

    reward = CompositeReward(tool=0.0)
    sampler = RoundSampler(POOL, GroupSettings(tasks=1, size=5), objective("grpo"), play, composite=reward)  # type: ignore[arg-type]
    (group,) = sampler.make(0).groups
    # outcome 1.0, format 0.2, length at most 0.05: from -0.05 to 1.2
    assert group.rewards == pytest.approx((1.0, 0.25 / 1.25, None, 0.05 / 1.25, 0.05 / 1.25))
    assert [one.success for one in group.attempts] == [True, False, None, False, False]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (["reward.format=2.0"], "reward: shaping could overturn the outcome"),
        (["reward.fromat=0.1"], "reward.fromat"),
        (["reward.format=0.1", "rollouts.reward=success"], "rollouts.reward=success both say"),
        (["reward.length_rule=dapo", "objective.overlong_soft=9", "objective.overlong_hard=12"], "name one of the two"),
        (["rollouts.turn_judge=tests.no:such", "rollouts.credit=turn_reward"], "rollouts.turn_judge"),
        (["rollouts.turn_judge=tests.unit.pipelines.test_online_reward:generous"], "does not ask it"),
        (
            ["rollouts.turn_judge=tests.unit.pipelines.test_online_reward:generous", "rollouts.credit=turn_reward",
             "rollouts.outcome=0.5"], "must not outweigh the outcome",
        ),
        (["rollouts.credit=state", "objective.name=reinforce"], "objective reinforce has baseline none"),
        (["rollouts.credit=state", "objective.name=ppo"], "objective ppo has baseline value"),
    ],
)  # fmt: skip
def test_what_contradicts_the_reward_is_refused(keys: list[str], says: str) -> None:
    config = load(RefineGrpoConfig, None, keys)
    (fault,) = refine_grpo.faults(config)
    assert says in fault


def test_the_reward_and_the_judge_are_found() -> None:
    judged = "rollouts.turn_judge=tests.unit.pipelines.test_online_reward:generous"
    config = load(RefineGrpoConfig, None, ["reward.format=0.1", judged, "rollouts.credit=turn_reward"])
    assert refine_grpo.faults(config) == [] and turn_judge(config) is not None
