"""The preference losses against their formulas, in float64."""

from __future__ import annotations

import math

import pytest
import torch

from offline_agent.training.offline.losses import PairSums, preference_loss, segment_sums, turn_weights

CHOSEN, REJECTED, REF_CHOSEN, REF_REJECTED = [-3.0, -7.5, -1.0], [-4.0, -2.0, -1.0], [-3.5, -7.0, -2.0], [-3.0, -3.0, 0]
COUNTS, OTHER_COUNTS = [3, 5, 1], [2, 4, 6]
BETA = 0.3


def sums() -> PairSums:
    columns = (CHOSEN, REJECTED, REF_CHOSEN, REF_REJECTED, COUNTS, OTHER_COUNTS)
    return PairSums(*(torch.tensor(column, dtype=torch.float64) for column in columns))


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(name: str, i: int) -> float:
    ratio_chosen, ratio_rejected = CHOSEN[i] - REF_CHOSEN[i], REJECTED[i] - REF_REJECTED[i]
    margin = BETA * (ratio_chosen - ratio_rejected)
    each = ratio_chosen / COUNTS[i] - ratio_rejected / OTHER_COUNTS[i]
    return {
        "sigmoid": -math.log(sigma(margin)),
        "dmpo": -math.log(sigma(margin)),
        "ipo": (each - 1 / (2 * BETA)) ** 2,
        "sigmoid_norm": -math.log(sigma(BETA * each)),
    }[name]


@pytest.mark.parametrize("name", ["sigmoid", "dmpo", "ipo", "sigmoid_norm"])
def test_a_loss_is_its_formula(name: str) -> None:
    found = preference_loss(name, sums(), BETA).tolist()
    assert found == pytest.approx([by_hand(name, i) for i in range(3)], abs=1e-12)


@pytest.mark.parametrize("name", ["sigmoid", "dmpo"])
def test_label_noise_mixes_both_orders(name: str) -> None:
    noise = [0.0, 0.1, 0.5]
    found = preference_loss(name, sums(), BETA, torch.tensor(noise, dtype=torch.float64)).tolist()
    for i, e in enumerate(noise):
        right = by_hand("sigmoid", i)
        wrong = -math.log(1 - math.exp(-right))
        assert found[i] == pytest.approx((1 - e) * right + e * wrong, abs=1e-12)


def test_even_odds_pull_a_confident_policy_back() -> None:
    chosen = torch.tensor([5.0], dtype=torch.float64, requires_grad=True)
    none = torch.zeros(1, dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    preference_loss("sigmoid", PairSums(chosen, none, none, none, one, one), 1.0, 0.5 * one).sum().backward()
    assert chosen.grad is not None and float(chosen.grad) > 0  # descending lowers the chosen side


@pytest.mark.parametrize("name", ["sigmoid", "dmpo", "ipo", "sigmoid_norm"])
def test_gradients_are_those_of_the_values(name: str) -> None:
    given = sums()

    def loss(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        return preference_loss(name, given._replace(chosen=chosen, rejected=rejected), BETA)

    inputs = (given.chosen.requires_grad_(), given.rejected.requires_grad_())
    assert torch.autograd.gradcheck(loss, inputs)


def test_turn_weights_fall_from_one() -> None:
    g = 0.9
    expected = [1.0] * 2 + [(1 - g**2) / (1 - g**3)] + [(1 - g) / (1 - g**3)] * 3
    assert turn_weights([1, 1, 0, 0, 1, 0, 1, 1, 1, 0], g) == pytest.approx(expected)
    assert turn_weights([0, 1, 1], g) == [1.0, 1.0]
    assert turn_weights([0, 0], g) == []


def test_segment_sums_add_by_owner() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 8.0])
    assert segment_sums(values, torch.tensor([2, 0, 2, 0]), 4).tolist() == [10.0, 0.0, 5.0, 0.0]
