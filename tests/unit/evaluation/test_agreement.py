"""Agreement of a judge with a verifier, against known numbers."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from offline_agent.evaluation.agreement import agreement, kappa, share


def test_kappa_is_agreement_beyond_chance() -> None:
    """Cohen 1960's form on a table of 20 + 5 + 10 + 15: observed 0.70, expected 0.50."""
    table = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    assert kappa(table) == pytest.approx(0.4)
    assert kappa([(True, True)] * 5) is None, "two that always say the same show nothing"
    assert kappa([]) is None


@pytest.mark.parametrize(("count", "of"), [(0, 7), (3, 7), (7, 7), (40, 100)])
def test_intervals_are_wilsons(count: int, of: int) -> None:
    found, wanted = share(count, of, 0.9), binomtest(count, of).proportion_ci(0.9, "wilson")
    assert (found["low"], found["high"]) == pytest.approx((wanted.low, wanted.high))
    assert share(0, 0)["value"] is None and share(0, 0)["low"] is None


def test_error_rates_are_of_those_that_could_be_wrong() -> None:
    judged = [(False, True)] * 3 + [(False, False)] + [(True, False)] * 2 + [(True, True)] * 4
    found = agreement(judged)
    assert found["false_positives"]["value"] == 0.75 and found["false_positives"]["of"] == 4
    assert found["false_negatives"]["value"] == pytest.approx(1 / 3) and found["agreement"]["value"] == 0.5
