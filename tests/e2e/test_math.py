"""env=math is searched, mined and trained on; the same trees for any number of workers; an unknown level of sandbox."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.code_families import assert_learns, assert_same_trees


def test_it_is_searched_mined_and_trained_on(tmp_path: Path) -> None:
    assert_learns("math", tmp_path)


def test_trees_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    assert_same_trees("math", tmp_path)
