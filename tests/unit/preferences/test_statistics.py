from __future__ import annotations

import math

import numpy as np
import pytest

from offline_agent.preferences.statistics import Evidence, Prior, certainty, probability_above


def sampled(better: tuple[float, float], worse: tuple[float, float], n: int = 400_000) -> float:
    rng = np.random.default_rng(0)
    one = rng.beta(better[0] + 0.5, better[1] + 0.5, n)
    return float((one > rng.beta(worse[0] + 0.5, worse[1] + 0.5, n)).mean())


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ((3, 0), (0, 3)),
        ((0, 0), (0, 0)),
        ((2.5, 0.5), (1, 2)),
        ((40, 24), (20, 44)),
        ((0, 5), (7, 1)),
        ((900, 100), (880, 120)),
    ],
)
def test_agrees_with_sampling(better: tuple[float, float], worse: tuple[float, float]) -> None:
    assert probability_above(Evidence(*better), Evidence(*worse)) == pytest.approx(sampled(better, worse), abs=4e-3)


def test_agrees_with_the_closed_form_of_a_uniform_prior() -> None:
    # With Beta(1, 1) priors and one success against none: E[X] of Beta(2, 1) against Beta(1, 1) is 2/3.
    assert probability_above(Evidence(1, 0), Evidence(0, 0), prior=Prior(1.0, 1.0)) == pytest.approx(2 / 3, abs=2e-5)


def test_is_half_for_equals_and_sums_to_one() -> None:
    for one, other in (((3, 1), (3, 1)), ((7, 2), (1, 4)), ((0.25, 2.75), (30, 3))):
        forward = probability_above(Evidence(*one), Evidence(*other))
        backward = probability_above(Evidence(*other), Evidence(*one))
        assert forward + backward == pytest.approx(1.0, abs=1e-9)
        if one == other:
            assert forward == pytest.approx(0.5, abs=1e-9)


def test_a_known_value_is_a_point() -> None:
    # Beta(1/2, 1/2) is the arcsine law: P(Q < x) = 2/π · asin √x.
    for x in (0.0, 0.1, 0.5, 0.9, 1.0):
        expected = 2 / math.pi * math.asin(math.sqrt(x))
        assert probability_above(Evidence(0, 0, known=x), Evidence(0, 0)) == pytest.approx(expected, abs=2e-5)
        assert probability_above(Evidence(0, 0), Evidence(0, 0, known=x)) == pytest.approx(1 - expected, abs=2e-5)
    assert probability_above(Evidence(1, 0, known=1.0), Evidence(0, 1, known=0.5)) == 1.0
    assert probability_above(Evidence(0, 1, known=0.5), Evidence(0, 1, known=0.5)) == 0.5
    assert probability_above(Evidence(0, 1, known=0.0), Evidence(0, 1, known=0.5)) == 0.0


def test_large_counts_stay_sharp() -> None:
    assert probability_above(Evidence(50_500, 49_500), Evidence(49_500, 50_500)) == pytest.approx(1.0, abs=1e-4)
    near = probability_above(Evidence(100_050, 99_950), Evidence(100_000, 100_000))
    assert near == pytest.approx(0.5625, abs=5e-3)  # the normal approximation: Φ(0.05 / √2 · √10)


def test_certainty_of_one_verdict_each() -> None:
    assert certainty(1.0, 0.0, certain=True) == 1.0
    assert 0.9 < certainty(1.0, 0.0, certain=False) < 1.0
    assert certainty(1.0, 0.0, certain=False) == pytest.approx(probability_above(Evidence(1, 0), Evidence(0, 1)))
