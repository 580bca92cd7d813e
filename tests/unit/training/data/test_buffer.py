from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import DataError
from offline_agent.store.columns import known_name, table_schema
from offline_agent.store.tables import read_table, write_table
from offline_agent.training.data.buffer import SMALLEST_GAP, gap, replay
from offline_agent.training.settings import ReplaySection

PREFERENCES = table_schema("preferences")


def pair(number: int, value: float = 0.5, *, swapped: bool = False, ids: bool = True) -> dict[str, Any]:
    sides = ([7, number], [8, number])
    chosen, rejected = sides[::-1] if swapped else sides
    row: dict[str, Any] = dict.fromkeys(map(known_name, PREFERENCES.names))
    row |= {
        "prompt": [{"role": "user", "content": f"task {number}"}],
        "chosen": [{"role": "assistant", "content": str(chosen)}],
        "rejected": [{"role": "assistant", "content": str(rejected)}],
        "tools": "[]", "kind": "step", "task_id": f"t{number}", "split": "train", "q_chosen": value, "q_rejected": 0.0,
        "visits_chosen": 3, "visits_rejected": 3, "confidence": 0.95, "weight": 0.5,
    }  # fmt: skip
    row["certificate"] = "{}"
    if ids:
        row |= {
            "prompt_ids": [1, 2, number], "chosen_ids": chosen, "rejected_ids": rejected, "chosen_mask": [1, 1],
            "rejected_mask": [1, 1], "ref_chosen_logps": [-0.5, -1.5], "ref_rejected_logps": [-2.0, -0.25],
            "certificate": '{"model_hash": "abc"}',
        }  # fmt: skip
    return row


def table(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    return write_table(folder / f"{name}.parquet", "preferences", rows, PREFERENCES)


def draw(earlier: list[Path], new: list[dict[str, Any]], **changed: Any) -> Any:
    kinds, seed = changed.pop("kinds", ("step",)), changed.pop("seed", 0)
    keys = ReplaySection(**{"pairs": 100, "share": 1.0, **changed})
    return replay(earlier, new, kinds=kinds, keys=keys, seed=seed)


def test_rows_come_back_as_they_were_and_can_be_written_again(tmp_path: Path) -> None:
    rows = [pair(n) for n in range(3)]
    first = table(tmp_path, "first", rows)
    found = draw([first], [pair(n) for n in range(10, 13)])
    assert found.kept == 3 and found.superseded == 0
    again = table(tmp_path, "again", found.rows)
    assert list(read_table(again)) == list(read_table(first))


def test_the_newest_are_kept(tmp_path: Path) -> None:
    files = [table(tmp_path, str(n), [pair(10 * n + m) for m in range(10)]) for n in range(3)]
    found = draw(files, [pair(n) for n in range(100, 200)], pairs=14)
    assert found.kept == 14
    assert [row["task_id"] for row in found.rows] == [f"t{n}" for n in range(16, 30)]


def test_no_more_than_the_share_of_the_new_ones(tmp_path: Path) -> None:
    file = table(tmp_path, "old", [pair(n) for n in range(50)])
    assert len(draw([file], [pair(n) for n in range(100, 110)], share=0.5).rows) == 5
    assert len(draw([file], [pair(n) for n in range(100, 109)], share=0.5).rows) == 4
    assert draw([file], [], share=0.5).rows == []
    assert draw([file], [pair(100)], share=0.0).rows == []
    assert draw([file], [pair(100)], pairs=0).rows == []
    assert len(draw([file], [pair(100)], share=1000).rows) == 50


@pytest.mark.parametrize("ids", [True, False])
def test_newer_evidence_on_the_same_question_counts(tmp_path: Path, ids: bool) -> None:
    oldest = table(tmp_path, "oldest", [pair(1, 0.9, swapped=True, ids=ids), pair(2, ids=ids), pair(4, ids=ids)])
    newer = table(tmp_path, "newer", [pair(1, 0.8, ids=ids), pair(3, ids=ids)])
    found = draw([oldest, newer], [pair(2, swapped=True, ids=ids), pair(3, ids=ids), *map(pair, range(20, 30))])
    assert [(row["task_id"], row["q_chosen"]) for row in found.rows] == [("t4", 0.5), ("t1", 0.8)]
    assert found.kept == 2 and found.superseded == 3  # 1, 2 of the oldest and 3 of the newer


def test_large_gaps_come_more_often(tmp_path: Path) -> None:
    file = table(tmp_path, "old", [pair(n, 0.9 if n < 20 else 0.3) for n in range(40)])
    new = [pair(n) for n in range(100, 110)]

    def large(priority: float) -> float:
        counts: Counter[bool] = Counter()
        for seed in range(60):
            counts.update(gap(row) > 0.5 for row in draw([file], new, priority=priority, seed=seed).rows)
        return counts[True] / counts.total()

    assert abs(large(0.0) - 0.5) < 0.06
    assert abs(large(1.0) - 0.72) < 0.06  # 3 : 1 at first, and less as they are used up
    assert large(8.0) > 0.99


def test_what_a_gap_is_between_differs_from_kind_to_kind_so_kinds_are_not_compared(tmp_path: Path) -> None:
    # Two ends differ by 1, two actions by far less: that says nothing of which pair teaches more.
    rows = [pair(n, 0.2 if n % 2 else 0.4) for n in range(20)]
    rows += [{**pair(n, 1.0), "kind": "trajectory"} for n in range(20, 40)]
    file, new = table(tmp_path, "old", rows), [pair(n) for n in range(100, 110)]
    drawn: Counter[str] = Counter()
    for seed in range(60):
        drawn.update(row["kind"] for row in draw([file], new, kinds=("step", "trajectory"), seed=seed).rows)
    assert abs(drawn["step"] / drawn.total() - 0.5) < 0.06


def test_kinds_that_are_not_trained_on_are_not_replayed(tmp_path: Path) -> None:
    other = {"kind": "hindsight"}
    file = table(tmp_path, "old", [{**pair(n), **(other if n < 15 else {})} for n in range(20)])
    new = [pair(n) for n in range(100, 110)]
    found = draw([file], new)
    assert found.kept == 5 and {row["kind"] for row in found.rows} == {"step"}
    assert len(draw([file], [*new[:2], *({**row, **other} for row in new[2:])]).rows) == 2


def test_the_seed_decides(tmp_path: Path) -> None:
    file = table(tmp_path, "old", [pair(n) for n in range(40)])
    new = [pair(n) for n in range(100, 110)]
    drawn = [[row["task_id"] for row in draw([file], new, seed=seed).rows] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(set(names)) == 10 for names in drawn)


def test_a_pair_without_a_gap_can_come_too(tmp_path: Path) -> None:
    file = table(tmp_path, "old", [pair(0, 0.0)])
    assert 0 < SMALLEST_GAP < 0.1
    assert len(draw([file], [pair(1)]).rows) == 1


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone.parquet: missing"):
        draw([tmp_path / "gone.parquet"], [pair(1)])
