"""Agreement of a judge with a verifier, against known numbers."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from offline_agent.evaluation.agreement import agreement, auc, kappa, share, turn_figures


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


def test_auc_is_the_share_of_pairs_in_order_ties_count_half() -> None:
    rows = [(0.9, 2.0, 0.0), (0.5, 1.0, 1.0), (0.1, 0.0, 2.0)]
    assert auc(rows) == pytest.approx((2 * 3 + 1 * 2 + 0.5) / 9)
    assert auc([(0.9, 1.0, 0.0)]) is None


def test_turns_weigh_as_much_as_they_were_visited() -> None:
    rows = [("a", 0.75, 1.0, 3), ("a", 0.25, 0.0, 1), ("b", 0.5, 0.0, 4)]
    found = turn_figures(rows, 0.95, 0)
    assert (found["turns"], found["visits"], found["tasks"], found["value"]) == (3, 8, 2, 0.375)
    assert found["brier"] == pytest.approx((3 * 0.0625 + 0.0625 + 4 * 0.25) / 8)
    assert found["brier_of_mean"] == pytest.approx(0.375 * 0.625)
    assert found["calibration"] == pytest.approx((3 * 0.25 + 0.25 + 4 * 0.5) / 8)
    assert found["auc"] == 1.0 and found["auc_within_tasks"]["mean"] == 1.0
