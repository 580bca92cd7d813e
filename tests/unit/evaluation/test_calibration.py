"""Figures of a calibration: against known numbers, and biases that are planted and must be found."""

from __future__ import annotations

import random

import pytest
from scipy.stats import binomtest

from offline_agent.evaluation.calibration import (
    Compared,
    Judged,
    agreement,
    biases,
    by_length,
    kappa,
    length_effect,
    preference,
    share,
)


def test_kappa_is_agreement_beyond_chance() -> None:
    """Cohen 1960's form on a table of 20 + 5 + 10 + 15: observed 0.70, expected 0.50."""
    table = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    assert kappa(table) == pytest.approx(0.4)
    assert kappa([(True, True)] * 5) is None, "two that always say the same show nothing"
    assert kappa([]) is None


@pytest.mark.parametrize(("count", "of"), [(0, 7), (3, 7), (7, 7), (40, 100)])
def test_intervals_are_wilsons(count: int, of: int) -> None:
    found, wanted = share(count, of, 0.9), binomtest(count, of).proportion_ci(0.9, "wilson")
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert share(0, 0).value is None and share(0, 0).low is None


def test_error_rates_are_of_those_that_could_be_wrong_and_unscored_ones_are_counted() -> None:
    judged = [Judged(False, True, 1)] * 3 + [Judged(False, False, 1)] * 1 + [Judged(True, False, 1)] * 2
    judged += [Judged(True, True, 1)] * 4 + [Judged(True, None, 1)] * 5
    found = agreement(judged)
    assert found["false_positives"]["value"] == 0.75 and found["false_positives"]["of"] == 4
    assert found["false_negatives"]["value"] == pytest.approx(1 / 3) and found["unscored"] == 5
    assert found["agreement"]["value"] == 0.5


def judged_by(rule, n: int = 300) -> list[Judged]:
    rng, out = random.Random(0), []
    for _ in range(n):
        truth, length = rng.random() < 0.5, rng.randrange(10, 1000)
        said = rule(truth, length, rng)
        out.append(Judged(truth, said, length, float(said)))
    return out


def figures(judged: list[Judged]) -> dict:
    return {**agreement(judged), "by_length": by_length(judged, 3)}


def test_a_judge_that_likes_length_is_found_and_a_sound_one_is_not() -> None:
    swayed = judged_by(lambda truth, length, rng: length > 500)
    assert biases(figures(swayed), None) == ["length: failures that are long pass more often than short ones"]
    assert (length_effect(swayed) or 0) > 0.7
    sound = judged_by(lambda truth, length, rng: truth if rng.random() < 0.9 else not truth)
    assert biases(figures(sound), None) == [] and abs(length_effect(sound) or 0) < 0.2
    assert [part["judged"] for part in figures(sound)["by_length"]] == [100, 100, 100]


def test_a_length_that_goes_with_success_is_no_bias() -> None:
    judged = [Judged(n > 50, n > 50, n, float(n > 50)) for n in range(100)]
    assert length_effect(judged) is None


def compared_by(rule, n: int = 60) -> list[Compared]:
    rng, out = random.Random(1), []
    for pair in range(n):
        longer = rng.random() < 0.5
        out += [Compared(first, longer, rule(first, longer), pair) for first in (True, False)]
    return out


def test_a_comparator_that_likes_a_place_or_a_length_is_found() -> None:
    place = preference(compared_by(lambda success_first, longer: True))
    assert place["swayed_by_order"]["value"] == 1 and place["accuracy"]["value"] == 0.5
    assert biases(None, place) == ["position: the first attempt is preferred"]
    size = preference(compared_by(lambda success_first, longer: success_first == longer))
    assert size["swayed_by_order"]["value"] == 0
    assert biases(None, size) == ["length: the longer attempt is preferred"]
    sound = preference(compared_by(lambda success_first, longer: success_first))
    assert sound["accuracy"]["value"] == 1 and biases(None, sound) == []
    silent = preference(compared_by(lambda success_first, longer: None))
    assert silent["undecided"] == 120 and silent["accuracy"]["value"] is None and biases(None, silent) == []
