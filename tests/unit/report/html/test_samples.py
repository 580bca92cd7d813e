"""Samples of the page: whole items, small groups first among equals, and honest words about what is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from offline_agent.report.html import page
from offline_agent.report.html.reading import choose, in_turn
from offline_agent.report.html.tree_view import places


def test_a_small_group_is_not_crowded_out() -> None:
    assert list(in_turn({"many": [1, 2, 3, 4], "few": [10], "none": []})) == [1, 10, 2, 3, 4]


def shown(item: int, number: int) -> dict[str, Any]:
    return {"item": item}


def test_what_does_not_fit_is_passed_over_and_counted() -> None:
    sizes = [40, 90, 30, 50]
    sample = choose(range(4), 9, 100, shown, lambda view: "x" * sizes[view["item"]], "The rule.")
    assert [one["item"] for one in sample.items] == [0, 2] and sample.too_large == 2
    assert sample.words == "2 of 9 are shown, each whole; nothing is cut. The rule. 2 did not fit and were passed over."
    everything = choose(range(4), 4, 1000, shown, str, "The rule.")
    assert everything.words == "All 4 are shown, each whole."


def test_it_gives_up_where_nothing_fits_any_more() -> None:
    asked: list[int] = []

    def make(item: int, number: int) -> dict[str, Any]:
        asked.append(item)
        return shown(item, number)

    assert len(choose(range(1000), 1000, 100, make, lambda _: "x" * 60, "").items) == 1 and len(asked) == 6


def test_leaves_have_rows_of_their_own_and_parents_stand_between_their_children() -> None:
    found = places({0: [1, 2, 5], 2: [3, 4]})
    assert found == {1: (1, 0.0), 3: (2, 1.0), 4: (2, 2.0), 2: (1, 1.5), 5: (1, 3.0), 0: (0, 1.5)}
    deep = {n: [n + 1] for n in range(5000)}  # no recursion
    assert places(deep)[5000] == (5000, 0.0)


def test_trees_open_on_a_task_with_successes_and_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "view", lambda data, number, *_: {"number": number, "id": data, "words": ""})
    run: Any = SimpleNamespace(pairs_at=dict, tree=lambda name: name)
    lines = [
        {"task": task, "solved": solved, "failed": failed, "unjudged": 0, "pairs": pairs, "quarantined": bad}
        for task, solved, failed, pairs, bad in (
            ("bad", 3, 3, 9, "no answer"), ("never", 0, 4, 9, None), ("few", 1, 3, 1, None), ("both", 2, 2, 5, None),
        )
    ]  # fmt: skip
    shown = page.sample(run, lines, 1000, str, {}).items
    assert [tree["task"] for tree in shown] == ["both", "never", "bad", "few"]
