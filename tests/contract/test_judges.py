"""Every verifier of the core keeps the promises of one."""

from __future__ import annotations

from typing import Any

import pytest

from offline_agent import catalog
from tests.helpers.judges import assert_judges

GOOD: dict[str, tuple[Any, ...]] = {
    "exact_match": ("cat", "the cat"),
    "f1": ("a black cat", "black cat"),
    "goal_state": ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
    "purchase": (
        {"type": "lamp", "attributes": ["red"], "options": {"size": "m"}, "price": 5},
        {"type": "lamp", "attributes": ["red"], "options": {"size": "m"}, "max_price": 5},
    ),
    "rows": ([(1, "a")], [(1, "a")]),
    "symbolic": ("1/2", "0.5", 2.0),
    "unit_tests": ("def f(): return 1", ["assert f() == 1", "assert f() + 1 == 2"]),
}
EMPTY: dict[str, Any] = {
    "exact_match": "", "f1": "", "goal_state": {}, "purchase": None, "rows": [], "symbolic": "",
    "unit_tests": "",
}  # fmt: skip


def test_the_table_is_whole() -> None:
    of_trajectories = {"all_of", "any_of", "ensemble", "environment", "hybrid", "llm", "mean_of",
                       "planned", "reward_model", "subgoals"}
    assert set(GOOD) == set(EMPTY) == set(catalog.JUDGES) - of_trajectories


@pytest.mark.parametrize("name", sorted(GOOD))
def test_it_keeps_its_promises(name: str) -> None:
    assert_judges(name, GOOD[name], EMPTY[name])
