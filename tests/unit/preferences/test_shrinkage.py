"""The prior of a node's actions: against quadrature in float64, and what it makes of siblings that hardly differ."""

from __future__ import annotations

import math

import pytest
from scipy.integrate import quad
from scipy.special import betaln
from scipy.stats import beta

from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.preferences.settings import PairRules
from offline_agent.preferences.statistics import (
    CONCENTRATIONS,
    JEFFREYS,
    Evidence,
    node_prior,
    posterior_mean,
    probability_above,
)
from tests.helpers import preferences as kit

SIDES = [(5.0, 0.0), (4.0, 3.0), (2.5, 3.5)]


def reference(mean: float, one: int, other: int) -> tuple[float, float]:
    """P(Q_one > Q_other) and E[Q_one], each part by quadrature."""
    weights, above, value = [], [], []
    for m in CONCENTRATIONS:
        a, b = 0.5 + m * mean, 0.5 + m * (1 - mean)
        weights.append(1.0)
        for s, f in SIDES:
            weights[-1] *= math.exp(betaln(a + s, b + f) - betaln(a, b))
        x, y = (beta(a + SIDES[i][0], b + SIDES[i][1]) for i in (one, other))
        above.append(quad(lambda q, x=x, y=y: x.pdf(q) * y.cdf(q), 0, 1, limit=500)[0])
        value.append(x.mean())
    total = sum(weights)
    return (
        sum(w * p for w, p in zip(weights, above, strict=True)) / total,
        sum(w * v for w, v in zip(weights, value, strict=True)) / total,
    )


@pytest.mark.parametrize(("one", "other"), [(0, 1), (2, 0)])
def test_agrees_with_quadrature(one: int, other: int) -> None:
    actions = [Evidence(*side) for side in SIDES]
    prior = node_prior(0.6, actions)
    above, value = reference(0.6, one, other)
    assert prior.above(actions[one], actions[other]) == pytest.approx(above, abs=1e-3)  # light parts are left out
    assert prior.value(actions[one]) == pytest.approx(value, abs=1e-3)


def test_without_concentration_it_is_the_independent_posterior() -> None:
    actions = [Evidence(*side) for side in SIDES]
    for concentration in (0.0, 1e-9):
        prior = node_prior(0.6, actions, (concentration,))
        assert prior.above(actions[0], actions[1]) == pytest.approx(probability_above(actions[0], actions[1]))
        assert prior.value(actions[0]) == pytest.approx(posterior_mean(actions[0], JEFFREYS))


def test_like_siblings_are_drawn_together_and_unlike_ones_are_not() -> None:
    pair = (Evidence(5, 0), Evidence(4, 3))
    plain = probability_above(*pair)
    alike = node_prior(0.75, [*pair, *[Evidence(6, 2)] * 4]).above(*pair)
    unlike = node_prior(0.6, [*pair, Evidence(0, 9), Evidence(9, 0), Evidence(0, 9)]).above(*pair)
    assert plain > 0.95 and alike < 0.8 < unlike
    clear = (Evidence(30, 1), Evidence(1, 30))
    assert node_prior(0.5, clear).above(*clear) > 0.999 and node_prior(0.5, clear).value(clear[0]) > 0.9


def test_known_ends_say_nothing_of_how_alike_the_others_are() -> None:
    actions = [Evidence(*side) for side in SIDES]
    ends = [Evidence(0, 1, known=0.0), Evidence(1, 0, known=1.0)]
    assert node_prior(0.6, [*actions, *ends]) == node_prior(0.6, actions)


def test_a_slip_that_can_be_mended_makes_no_step_pair() -> None:
    tree = kit.fan((5, 0), (4, 3), (6, 2), (5, 2), (4, 1))
    assert StepPairs(second_opinion=False, concentrations=(0.0,)).mine(tree)[0]
    assert not StepPairs(second_opinion=False).mine(tree)[0]


def test_a_prior_alone_makes_no_order() -> None:
    tree = kit.fan((9, 0), (0, 3))  # the mean of the first lifts the second, which never succeeded
    failed = kit.sided(tree, tree.root, kit.act("leave"), 0, 1)
    kit.end(failed, 0.0)
    pairs, _ = StepPairs(PairRules(min_gap=0.0, per_node=9), second_opinion=False).mine(tree)
    assert {(p.chosen_edge, p.rejected_edge) for p in pairs} == {(0, 1), (0, 2)}


def test_no_probability_leaves_its_range_by_a_rounding_error() -> None:
    """Alone catches rows refused for a confidence of 1.0000000000000002."""
    for good in range(1, 30):
        sides = [Evidence(float(good), 0.0), Evidence(0.0, 1.0, known=0.0), Evidence(1.0, 0.0, known=1.0)]
        for m in range(1, 12):
            prior = node_prior(m / 12, [sides[0], Evidence(0.0, float(m))])
            for one in sides:
                for other in sides:
                    assert 0.0 <= prior.above(one, other) <= 1.0
                assert 0.0 <= prior.value(one) <= 1.0
