"""Ranks within a group as rewards: what the advantage becomes, order, ties, what is unscored, the bound of weights."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.errors import ConfigError
from offline_agent.judges.rewards import CompositeReward
from offline_agent.pipelines.stages.online import faults, make_ranking
from offline_agent.records import Task, Trajectory
from offline_agent.rollouts.attempts import Attempt, AttemptRequest
from offline_agent.training.online.advantages import group_advantages
from offline_agent.training.online.groups import RankingReward, RoundSampler, most_weight
from offline_agent.training.online.objectives import objective
from offline_agent.training.online.settings import GroupSettings
from tests.unit.training.online.test_groups import attempt

HERE = "tests.unit.training.online.test_ranked:"
TASK = Task("t", "train", {"n": 0})


def members(outcomes: Sequence[float | None], words: Sequence[str]) -> list[Attempt]:
    return [
        attempt(AttemptRequest(TASK, "sampled", n), outcome, [word])
        for n, (outcome, word) in enumerate(zip(outcomes, words, strict=True))
    ]


def said(trajectory: Trajectory) -> str:
    return trajectory.steps[-1].action.text


def longer(first: Trajectory, second: Trajectory) -> float | None:
    """Prefer the longer last word; fail on any attempt that says `!`."""
    one, other = said(first), said(second)
    if "!" in (one, other):
        return None
    return 0.5 if len(one) == len(other) else float(len(one) > len(other))


def first_place(first: Trajectory, second: Trajectory) -> float:
    return 1.0


def success(attempts: Sequence[Attempt]) -> list[float | None]:
    return [None if one.success is None else float(one.success) for one in attempts]


def test_the_advantage_is_that_of_outcome_and_rank_by_hand_in_float64() -> None:
    group = members([1.0, 0.25, 0.0, 1.0], ["aa", "aaa", "a", "aaaa"])
    rewards, errors = RankingReward(longer, 0.4).of_group(group, success(group))
    wins = np.array([1, 2, 0, 3], np.float64)
    wanted = 0.6 * np.array([1, 0, 0, 1], np.float64) + 0.4 * wins / 3
    assert errors == [None] * 4 and rewards == pytest.approx(wanted.tolist(), abs=1e-15)
    found = group_advantages(rewards, [0] * 4, objective("grpo"))
    assert found == pytest.approx(((wanted - wanted.mean()) / (wanted.std(ddof=1) + 1e-4)).tolist(), abs=1e-12)


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, None]), st.sampled_from(["", "a", "aa", "aaa", "!"])),
             min_size=2, max_size=12),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_a_permutation_of_the_group_permutes_the_rewards_and_ties_share(
    drawn: list[tuple[float | None, str]], chance: random.Random
) -> None:
    outcomes, words = [one for one, _ in drawn], [word for _, word in drawn]
    ranking = RankingReward(longer, 0.5, workers=3)
    group = members(outcomes, words)
    rewards, _ = ranking.of_group(group, success(group))
    order = list(range(len(drawn)))
    chance.shuffle(order)
    shuffled = members([outcomes[n] for n in order], [words[n] for n in order])
    assert ranking.of_group(shuffled, success(shuffled))[0] == [rewards[n] for n in order]
    for one, other in itertools.combinations(range(len(drawn)), 2):
        alike = success(group)[one] == success(group)[other] and len(words[one]) == len(words[other])
        if alike and "!" not in (words[one], words[other]):
            assert rewards[one] == rewards[other]
    worth = [(done, reward) for done, reward in zip(success(group), rewards, strict=True) if reward is not None]
    assert all(0 <= reward <= 1 for _, reward in worth)
    assert min((r for s, r in worth if s), default=1) >= max((r for s, r in worth if not s), default=0)


def test_a_member_whose_comparisons_failed_is_unscored_and_the_others_are_ranked_without_it() -> None:
    group = members([0.0, 1.0, 0.0], ["a", "!", "aa"])
    rewards, errors = RankingReward(longer, 0.5).of_group(group, success(group))
    assert rewards == [0.0, None, 0.5] and "could not compare" in str(errors[1]) and errors[0] is None

    def broken(first: Trajectory, second: Trajectory) -> float:
        raise RuntimeError("no network")

    rewards, errors = RankingReward(broken, 0.5).of_group(group, success(group))
    assert rewards == [None] * 3 and all("no network" in str(error) for error in errors)


def test_one_that_nobody_judged_is_compared_with_nobody_unless_ranks_are_all_there_is() -> None:
    group = members([None, 1.0, 0.0], ["aaa", "a", "aa"])
    assert RankingReward(longer, 0.5).of_group(group, success(group))[0] == [None, 0.5, 0.5]
    assert RankingReward(longer, 1.0).of_group(group, success(group))[0] == [1.0, 0.0, 0.5]


def test_a_judge_that_prefers_a_place_gives_everybody_the_same() -> None:
    group = members([0.0] * 4, ["a", "aa", "aaa", "b"])
    assert RankingReward(first_place, 0.5).of_group(group, success(group))[0] == [0.25] * 4


def test_a_rounds_groups_carry_the_ranks_and_partial_credit_cannot_add_up_to_a_success() -> None:
    def play(asks: Sequence[AttemptRequest], number: int) -> list[Attempt]:
        return [attempt(ask, [1.0, 0.9][n % 2], ["a" * (1 + n % 2)]) for n, ask in enumerate(asks)]

    sampler = RoundSampler([TASK], GroupSettings(tasks=1, size=2), objective("grpo"), play,
                           ranking=RankingReward(longer, 0.5))  # fmt: skip
    assert sampler.make(0).groups[0].rewards == (0.5, 0.5)


def config(**reward: Any) -> RefineGrpoConfig:
    return RefineGrpoConfig.model_validate({"reward": reward})


def test_the_outcome_is_at_least_half_and_shaping_lowers_the_bound() -> None:
    name = {"ranking": HERE + "longer"}
    made = make_ranking(config(**name))
    assert made is not None and made.weight == 0.5 and made.compare is longer and make_ranking(config()) is None
    assert make_ranking(config(ranking_weight=1.0, **name)) is not None, "whether there is an outcome is seen later"
    worse = {"ranking_weight": 0.51}, {"format": 0.1, "ranking_weight": 0.2}, {"format": 0.1, "ranking_weight": 1.0}
    for given_keys in worse:
        with pytest.raises(ConfigError, match="ranking_weight"):
            make_ranking(config(**name, **given_keys))
        assert any("ranking_weight" in fault for fault in faults(config(**name, **given_keys)))
    with pytest.raises(ConfigError, match="reward.ranking"):
        make_ranking(config(ranking="nonsense"))


@given(st.floats(0, 0.99), st.floats(0, 0.3), st.floats(-0.1, 0), st.floats(0, 0.1))
def test_the_bound_keeps_every_success_above_every_failure(
    ceiling: float, shape: float, length: float, tool: float
) -> None:
    try:
        reward = CompositeReward(1.0, shape, tool, length, failure_ceiling=ceiling)
    except ConfigError:
        return
    scaled = lambda raw: (raw - reward.least) / (reward.greatest - reward.least)  # noqa: E731
    worst, best = scaled(1.0 - tool + length), scaled(ceiling + shape + tool)
    assert reward.gap == pytest.approx(worst - best, abs=1e-9) and 0 < reward.gap <= 1
    w = most_weight(reward.gap)
    assert (1 - w) * worst >= (1 - w) * best + w - 1e-9
    assert most_weight(1.0) == 0.5
