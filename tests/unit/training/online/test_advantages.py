"""Rewards to advantages: groups, filters, turns and a critic."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl.rewards import get_soft_overlong_punishment
from trl.trainer.utils import nanstd

from offline_agent.errors import DataError
from offline_agent.training.online.advantages import (
    gae,
    group_advantages,
    kept_groups,
    over_tokens,
    overlong,
    spread,
    token_rewards,
    turn_advantages,
    whiten,
)
from offline_agent.training.online.objectives import Objective, objective

REWARDS = [1.0, 0.0, None, 0.25, 0.3, 0.3, 0.3, 0.9, None]
GROUPS = ["a", "a", "a", "a", "b", "b", "b", "c", "d"]
numbers = st.floats(-2, 2, allow_nan=False).map(lambda x: round(x, 3))


def like(**changes: Any) -> Objective:
    return objective("grpo", **changes)


# -- groups ------------------------------------------------------------------------------------------------------------


def test_the_mean_and_deviation_are_those_of_the_scored_members() -> None:
    found = group_advantages(REWARDS, GROUPS, like())
    mean, std = statistics.mean([1.0, 0.0, 0.25]), statistics.stdev([1.0, 0.0, 0.25])
    assert found[:2] == pytest.approx([(1 - mean) / (std + 1e-4), -mean / (std + 1e-4)], rel=1e-12)
    assert found[3] == pytest.approx((0.25 - mean) / (std + 1e-4), rel=1e-12)


def test_an_unscored_trajectory_has_no_advantage_and_is_not_a_zero() -> None:
    for wanted in (like(), like(scale="none"), like(baseline="leave_one_out"), objective("reinforce")):
        found = group_advantages(REWARDS, GROUPS, wanted)
        assert found[2] is None and found[8] is None
        without = group_advantages([1.0, 0.0, 0.25], ["a"] * 3, wanted)
        assert [found[0], found[1], found[3]] == without


def test_a_group_without_spread_gets_exactly_nothing() -> None:
    assert group_advantages(REWARDS, GROUPS, like())[4:7] == [0.0, 0.0, 0.0]
    rounded = [0.1 + 0.2, 0.3, 0.3]  # equal but for the last digit
    assert group_advantages(rounded, "bbb", like()) == [0.0, 0.0, 0.0]
    assert spread(rounded, "bbb") == {"b": 0.0}


def test_a_lone_survivor_is_at_its_own_mean_but_has_nobody_to_be_left_out_of() -> None:
    assert group_advantages(REWARDS, GROUPS, like())[7] == 0.0
    assert group_advantages(REWARDS, GROUPS, like(scale="none"))[7] == 0.0
    assert group_advantages(REWARDS, GROUPS, objective("rloo"))[7] is None
    assert group_advantages(REWARDS, GROUPS, objective("reinforce"))[7] == 0.9


def test_leaving_one_out_takes_the_others_mean_off() -> None:
    found = group_advantages([1.0, 0.0, 0.25, 0.5], "aaaa", objective("rloo"))
    expected = [1 - 0.75 / 3, 0 - 1.75 / 3, 0.25 - 1.5 / 3, 0.5 - 1.25 / 3]
    assert found == pytest.approx(expected, rel=1e-12)
    plain = group_advantages([1.0, 0.0, 0.25, 0.5], "aaaa", like(scale="none"))
    assert found == pytest.approx([4 / 3 * a for a in plain if a is not None], rel=1e-12)


def test_the_batchs_deviation_is_that_of_all_scored_rewards() -> None:
    found = group_advantages(REWARDS, GROUPS, like(scale="batch_std"))
    std = statistics.stdev([r for r in REWARDS if r is not None])
    assert found[0] == pytest.approx((1 - 1.25 / 3) / (std + 1e-4), rel=1e-12)


def test_without_a_baseline_the_reward_is_the_advantage() -> None:
    assert group_advantages(REWARDS, GROUPS, objective("reinforce")) == REWARDS


@given(st.lists(st.lists(st.one_of(st.none(), numbers), min_size=4, max_size=4), min_size=1, max_size=5))
def test_trl_normalises_the_same_way(table: list[list[float | None]]) -> None:
    rewards = torch.tensor([[float("nan") if r is None else r for r in row] for row in table], dtype=torch.float64)
    mean, std = rewards.nanmean(dim=1, keepdim=True), nanstd(rewards, dim=1, keepdim=True)
    theirs = torch.nan_to_num((rewards - mean) / (std + 1e-4), nan=0.0).flatten().tolist()
    flat = [r for row in table for r in row]
    ours = group_advantages(flat, [k for k, row in enumerate(table) for _ in row], like())
    for mine, other, reward in zip(ours, theirs, flat, strict=True):
        assert (mine is None) == (reward is None)
        assert (mine or 0.0) == pytest.approx(other, rel=1e-6, abs=1e-9)  # its n / (n - 1) is float32


@given(st.lists(numbers, min_size=2, max_size=6), numbers)
def test_what_all_have_in_common_counts_for_nothing(rewards: list[float], more: float) -> None:
    for wanted in (like(), like(scale="none"), objective("rloo")):
        found = group_advantages(rewards, ["a"] * len(rewards), wanted)
        moved = group_advantages([r + more for r in rewards], ["a"] * len(rewards), wanted)
        assert found == pytest.approx(moved, abs=1e-6)
        assert sum(a for a in found if a is not None) == pytest.approx(0, abs=1e-9)


def test_a_reward_that_is_no_number_is_refused() -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(DataError, match="reward 1 is"):
            group_advantages([1.0, bad], "aa", like())
        with pytest.raises(DataError, match="reward 1 is"):
            turn_advantages([[1.0, bad]], "a", like())


def test_a_critics_objective_has_no_group_advantages() -> None:
    with pytest.raises(ValueError, match="gae"):
        group_advantages([1.0, 0.0], "aa", objective("ppo"))


def test_nothing_gives_nothing() -> None:
    assert group_advantages([], [], like()) == []
    assert spread([], []) == {} and kept_groups([], [], like(keep_spread=0.5)) == []


# -- filters -----------------------------------------------------------------------------------------------------------


def test_a_spread_nobody_can_know_is_none() -> None:
    found = spread(REWARDS, GROUPS)
    assert list(found) == ["a", "b", "c", "d"]
    assert found == {"a": pytest.approx(statistics.stdev([1.0, 0.0, 0.25])), "b": 0.0, "c": None, "d": None}


def test_every_group_is_kept_unless_asked_otherwise() -> None:
    assert kept_groups(REWARDS, GROUPS, like()) == ["a", "b", "c", "d"]


def test_dynamic_sampling_leaves_groups_with_a_spread() -> None:
    assert kept_groups(REWARDS, GROUPS, objective("dapo")) == ["a"]
    assert kept_groups([0.5, 0.5], "aa", objective("dapo")) == []


def test_the_groups_of_the_largest_spread_are_kept() -> None:
    rewards = [1.0, 0.0, 0.6, 0.4, 0.5, 0.5, 1.0, 0.1]
    groups = ["a", "a", "b", "b", "c", "c", "d", "d"]
    assert kept_groups(rewards, groups, objective("starpo_s")) == ["a"]  # a quarter of four
    assert kept_groups(rewards, groups, objective("starpo_s", keep_spread=0.5)) == ["a", "d"]
    assert kept_groups(rewards, groups, objective("starpo_s", keep_spread=0.8)) == ["a", "b", "d"]
    assert kept_groups(rewards, groups, objective("starpo_s", keep_spread=0.01)) == ["a"]  # never none at all
    both = objective("starpo_s", keep_spread=0.99, dynamic=True)
    assert kept_groups(rewards, groups, both) == ["a", "b", "d"]


def test_of_equal_spreads_the_earlier_is_kept_and_an_unknown_one_is_the_smallest() -> None:
    rewards, groups = [None, 1.0, 0.0, 1.0, 0.0, 1.0, 0.5, 0.5], ["x", "a", "a", "b", "b", "x", "c", "c"]
    assert kept_groups(rewards, groups, like(keep_spread=0.25)) == ["a"]
    assert kept_groups(rewards, groups, like(keep_spread=0.75)) == ["a", "b", "c"]


def test_a_share_is_not_lost_to_rounding() -> None:
    rewards = [float(k % 2 * k) for k in range(200)]
    assert len(kept_groups(rewards, [k // 2 for k in range(200)], like(keep_spread=0.29))) == 29


@pytest.mark.parametrize(("tokens", "expected"), [(0, 0.0), (8, 0.0), (9, -0.25), (11, -0.75), (12, -1.0), (50, -1.0)])
def test_overlong_answers_are_punished_by_their_agent_tokens(tokens: int, expected: float) -> None:
    wanted = objective("dapo", overlong_soft=8, overlong_hard=12)
    assert overlong(tokens, wanted) == expected
    assert overlong(tokens, wanted) == get_soft_overlong_punishment(12, 4)(completion_ids=[[0] * tokens])[0]
    assert overlong(tokens, objective("dapo")) == 0.0


# -- turns -------------------------------------------------------------------------------------------------------------


def test_a_turn_is_compared_with_the_same_turn_of_the_others() -> None:
    rewards = [[0.2, 1.0], [0.0, 0.5], [0.4], None]
    found = turn_advantages(rewards, "aaaa", like(scale="none"))
    first = [0.2 + 1.0, 0.5, 0.4]  # of the second turn: 1.0 and 0.5
    assert found[0] == pytest.approx([first[0] - statistics.mean(first), 0.25])
    assert found[1] == pytest.approx([first[1] - statistics.mean(first), -0.25])
    assert found[2] == pytest.approx([first[2] - statistics.mean(first)])
    assert found[3] is None


def test_turns_are_scaled_by_their_own_group_and_turn_or_by_all() -> None:
    rewards = [[0.0, 1.0], [0.0, 0.0], [1.0], [0.0]]
    found = turn_advantages(rewards, "aabb", like())
    assert found[0] == pytest.approx([0.5 / (statistics.stdev([1, 0]) + 1e-4)] * 2)
    everything = statistics.stdev([1.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    assert turn_advantages(rewards, "aabb", like(scale="batch_std"))[2] == pytest.approx([0.5 / (everything + 1e-4)])


def test_leaving_one_out_works_by_turns() -> None:
    found = turn_advantages([[1.0], [0.0], [0.5]], "aaa", objective("rloo"))
    assert [a for turns in found for a in turns or ()] == pytest.approx([0.75, -0.75, 0.0])


def test_a_turn_that_only_one_reached_says_nothing() -> None:
    for wanted in (like(), objective("rloo")):
        found = turn_advantages([[0.0, 0.0, 1.0], [0.0]], "aa", wanted)
        assert found[0] is not None and found[0][1:] == [0.0, 0.0] and found[0][0] > 0
    assert turn_advantages([[0.0, 1.0]], "a", objective("reinforce")) == [[1.0, 1.0]]


def test_one_outcome_for_all_turns_is_the_trajectorys_advantage() -> None:
    rewards = [[0.0, 1.0], [0.0, 0.0], [0.0, 0.5]]
    found = turn_advantages(rewards, "aaa", like())
    whole = group_advantages([1.0, 0.0, 0.5], "aaa", like())
    assert found == [pytest.approx([a, a]) for a in whole]


def test_a_trajectory_without_turns_has_no_advantages() -> None:
    assert turn_advantages([[], [1.0], [0.0]], "aaa", like(scale="none")) == [[], [0.5], [-0.5]]


def test_a_turns_advantage_stands_at_each_of_its_agent_tokens() -> None:
    assert over_tokens([0.5, -1.0, 2.0], [2, 0, 1]) == [0.5, 0.5, 2.0]
    with pytest.raises(ValueError):
        over_tokens([0.5], [2, 1])


# -- a critic ----------------------------------------------------------------------------------------------------------


def test_a_turns_reward_stands_at_its_last_agent_token_and_none_is_lost() -> None:
    assert token_rewards([0.1, 0.2, 1.0], [2, 1, 3]).tolist() == [0.0, 0.1, 0.2, 0.0, 0.0, 1.0]
    assert token_rewards([0.1, 0.2, 1.0], [2, 0, 1]).tolist() == pytest.approx([0.0, 0.3, 1.0])
    assert token_rewards([0.5, 1.0], [0, 2]).tolist() == [0.5, 1.0]
    assert token_rewards([0.5], [0]).tolist() == []


@given(
    st.lists(st.tuples(numbers, numbers), max_size=12),
    st.floats(0, 1).map(lambda x: round(x, 3)),
    st.floats(0, 1).map(lambda x: round(x, 3)),
)
def test_gae_is_the_sum_of_discounted_errors(steps: list[tuple[float, float]], gamma: float, lam: float) -> None:
    rewards, values = [r for r, _ in steps], [v for _, v in steps]
    following = [*values[1:], 0.0]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=False)]
    expected = [
        sum((gamma * lam) ** (later - t) * deltas[later] for later in range(t, len(steps))) for t in range(len(steps))
    ]
    advantages, returns = gae(rewards, values, gamma, lam)
    assert advantages.tolist() == pytest.approx(expected, abs=1e-9)
    assert returns.tolist() == pytest.approx([a + v for a, v in zip(expected, values, strict=True)], abs=1e-9)


def test_with_lambda_one_it_is_the_return_less_the_value() -> None:
    advantages, returns = gae([0.0, 0.0, 1.0], [0.3, 0.9, 0.2], 0.5, 1.0)
    assert returns.tolist() == pytest.approx([0.25, 0.5, 1.0])
    assert advantages.tolist() == pytest.approx([-0.05, -0.4, 0.8])


def test_observations_are_stepped_over_and_take_no_discount() -> None:
    """Walk a whole sequence with its mask, carrying over observations, and compare with the agent tokens alone."""
    mask = [0, 1, 1, 0, 0, 1, 0, 1, 0]
    rewards = [9.0, 0.0, 0.5, 9.0, 9.0, 0.0, 9.0, 1.0, 9.0]
    values = [7.0, 0.1, 0.4, 7.0, -7.0, 0.8, 7.0, 0.3, 7.0]
    gamma, lam, following, carried = 0.9, 0.7, 0.0, 0.0
    expected: list[float] = []
    for t in range(len(mask) - 1, -1, -1):
        if not mask[t]:
            continue
        carried = rewards[t] + gamma * following - values[t] + gamma * lam * carried
        following = values[t]
        expected.insert(0, carried)
    own = [t for t, flag in enumerate(mask) if flag]
    counts = [2, 1, 1]
    given_rewards = token_rewards([0.5, 0.0, 1.0], counts)
    assert given_rewards.tolist() == [rewards[t] for t in own]
    assert gae(given_rewards, [values[t] for t in own], gamma, lam)[0].tolist() == pytest.approx(expected)


def test_rewards_and_values_must_be_of_the_same_tokens() -> None:
    with pytest.raises(ValueError, match="one of each for every agent token"):
        gae([0.0, 1.0], [0.5], 1.0, 1.0)


def test_whitening_is_over_all_tokens_of_the_round() -> None:
    found = whiten([[1.0, 2.0, 3.0], [6.0]])
    every = np.concatenate(found).tolist()
    std = statistics.stdev([1.0, 2.0, 3.0, 6.0])
    assert every == pytest.approx([(x - 3.0) / (std + 1e-4) for x in (1.0, 2.0, 3.0, 6.0)], rel=1e-12)
    assert [len(one) for one in found] == [3, 1]
    assert whiten([[2.0, 2.0], [2.0]])[0].tolist() == [0.0, 0.0]
    assert whiten([[5.0]])[0].tolist() == [0.0]
    assert whiten([]) == [] and whiten([[]])[0].tolist() == []
