"""A run that found little says why and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from offline_agent.report.build_prefs import findings, what_pays
from offline_agent.report.closing import commonest

GOOD: dict[str, Any] = {
    "tasks": 10, "policy": "hf", "pairs_total": 30, "kept_unmatched": 0, "kept_unmatched_longer": False,
    "success": {"best_of_search": 0.8, "plain_sampled": 0.4}, "cuts": {"episodes": 100}, "refused": {"pair": 3},
    "quarantined": {"trees": 0, "branches": 0, "rows": 0}, "quarantine_reasons": {}, "refusal_reasons": {"why so": 3},
}  # fmt: skip
NONE = {"success": {"best_of_search": 0.0, "plain_sampled": 0.0}, "pairs_total": 0}
ALL = {"success": {"best_of_search": 1.0, "plain_sampled": 1.0}, "pairs_total": 0, "refused": {}}


def test_a_run_that_found_pairs_has_nothing_to_explain() -> None:
    assert not list(findings(GOOD))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (NONE | {"policy": "random"}, "quote examples and ranges in their docstrings"),
        (NONE | {"policy": "noisy"}, "checks whether `demonstrate` solves the tasks"),
        (NONE, "Give the model a warm start"),
        (ALL, "every one of 100 ends is a success"),
        ({"pairs_total": 0}, "3 candidates were refused, most often (3) because: why so"),
        ({"pairs_total": 0, "refused": {}}, "none has a success and a failure that differ"),
        (
            {"quarantined": {"trees": 9, "branches": 0, "rows": 0}, "quarantine_reasons": {"no answer": 9}},
            "9 of 10 trees and 0 branches are in quarantine, most often (9) because: no answer",
        ),
        (
            NONE | {"cuts": {"episodes": 0}, "quarantined": {"trees": 0, "branches": 7, "rows": 0}},
            "0 of 10 trees and 7 branches are in quarantine",
        ),
        (
            {"policy": "random", "filtered": 16, "success": {"best_of_search": 0.1, "plain_sampled": 0.0}},
            "policy=random solved 10% of 10 tasks and leaves 16 successes. A new model learns little from so few",
        ),
        ({"kept_unmatched": 13, "pairs_total": 14}, "would drop 13 of 14 pairs, because the better sides are shorter"),
    ],
)
def test_each_cause_is_named_with_a_remedy(changes: dict[str, Any], told: str) -> None:
    (found,) = findings(GOOD | changes)
    assert told in found


def test_the_commonest_reason_is_the_one_with_most_cases() -> None:
    assert commonest({"rare": 1, "often": 5}) == ", most often (5) because: often" and commonest({}) == ""


@pytest.mark.parametrize(
    ("plain", "actions", "where"),
    [(0.5, 6.0, "shop"), (0.3, 6.0, "–"), (0.15, 2.0, "countdown"), (0.15, 7.0, "FrozenLake"), (0.0, 7.0, None),
     (None, 7.0, None)],
)  # fmt: skip
def test_a_run_is_told_where_a_tree_was_measured_under_its_conditions(
    plain: float | None, actions: float, where: str | None
) -> None:
    found = what_pays(plain, actions)
    assert found is None if where is None else found is not None and found[0] == where
