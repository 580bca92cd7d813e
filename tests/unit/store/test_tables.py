from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import offline_agent
from offline_agent.errors import DataError
from offline_agent.store import tables
from offline_agent.store.columns import PAIR_COLUMNS, TRAJECTORY_COLUMNS, table_schema
from offline_agent.store.tables import read_table, write_table

FILTERED, PREFERENCES, TRAJECTORIES = map(table_schema, ["filtered", "preferences", "trajectories"])

CALLS = [{"type": "function", "function": {"name": "search", "arguments": {"query": "ü", "page": None}}}]
MESSAGES = [
    {"role": "user", "content": "find"},
    {"role": "assistant", "content": "", "tool_calls": CALLS},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "buy", "arguments": {"n": 1.5}}}]},
    {"role": "tool", "name": "search", "content": "nothing"},
]


def preference(**change: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(PAIR_COLUMNS)
    row.update(
        prompt=MESSAGES[:1], chosen=MESSAGES[1:], rejected=[{"role": "assistant", "content": "no"}],
        tools='[{"type": "function"}]', kind="step", task_id="t", split="train", q_chosen=0.9, q_rejected=0.1,
        visits_chosen=3, visits_rejected=4, confidence=0.95, weight=0.5, certificate="{}",
        prompt_ids=[1, 2], chosen_ids=[3], rejected_ids=[4],
        chosen_mask=[1], rejected_mask=[1], ref_chosen_logps=[-0.5],
    )  # fmt: skip
    return {**row, **change}


def trajectory(**change: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(TRAJECTORY_COLUMNS)
    row.update(
        messages=MESSAGES, tools="[]", task_id="t", split="train", origin="search", steps=2, terminated=True,
        truncated=False, criticality=[None, 0.5], certificate="{}",
    )  # fmt: skip
    return {**row, **change}


def test_columns_are_those_of_the_contract() -> None:
    assert PREFERENCES.names == [
        "prompt", "chosen", "rejected", "tools", "kind", "task_id", "split", "tree_id", "node_id", "chosen_edge",
        "rejected_edge", "q_chosen", "q_rejected", "visits_chosen", "visits_rejected", "confidence", "rest_confidence",
        "weight", "verdict_chosen", "verdict_rejected", "tokens_prompt_ids", "tokens_chosen_ids", "tokens_rejected_ids",
        "tokens_chosen_mask", "tokens_rejected_mask", "tokens_ref_chosen_logps", "tokens_ref_rejected_logps",
        "certificate",
    ]  # fmt: skip
    assert TRAJECTORIES.names == FILTERED.names == [
        "messages", "tools", "task_id", "split", "origin", "reward", "success", "verdict", "steps", "terminated",
        "truncated", "tokens_input_ids", "tokens_action_mask", "tokens_logps", "criticality", "certificate",
    ]  # fmt: skip


def test_rows_come_back(tmp_path: Path) -> None:
    rows = [preference(task_id=str(number)) for number in range(600)]  # more than one batch
    path = write_table(tmp_path / "p.parquet", "preferences", iter(rows), PREFERENCES)
    found = list(read_table(path))
    assert [row["task_id"] for row in found] == [str(number) for number in range(600)]
    assert found[0]["chosen"][0] == {"role": "assistant", "content": "", "tool_calls": CALLS}
    assert found[0]["prompt"][0] == {"role": "user", "content": "find"}
    assert found[0]["tokens_ref_chosen_logps"] == [-0.5] and found[0]["tokens_ref_rejected_logps"] is None
    assert pq.read_schema(path).metadata[b"offline_agent.schema_version"] == b"2"


def test_row_groups_grow_with_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_SMALL_GROUPS", 3)
    monkeypatch.setattr(tables, "_GROUP_BYTES", 1 << 18)
    rows = (preference(task_id=str(number), tools="x" * 100) for number in range(3000))
    path = write_table(tmp_path / "p.parquet", "preferences", rows, PREFERENCES)
    about = pq.read_metadata(path)
    groups = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
    assert groups[:3] == [256] * 3 and min(groups[3:-1]) >= 512 and sum(groups) == 3000
    assert [row["task_id"] for row in read_table(path)] == [str(number) for number in range(3000)]
    assert write_table(tmp_path / "none.parquet", "preferences", [], PREFERENCES).exists()


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    a, b = (
        write_table(tmp_path / name, "preferences", [preference()], PREFERENCES).read_bytes() for name in ("a", "b")
    )
    assert a == b


def test_datasets_loads_them_without_invented_arguments(tmp_path: Path) -> None:
    from datasets import load_dataset

    write_table(tmp_path / "preferences" / "0000.parquet", "preferences", [preference()], PREFERENCES)
    write_table(tmp_path / "preferences" / "0001.parquet", "preferences", [], PREFERENCES)
    write_table(tmp_path / "trajectories" / "0000.parquet", "trajectories", [trajectory()], TRAJECTORIES)
    files = str(tmp_path / "preferences" / "*.parquet")
    row = load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))[0]
    assert row["chosen"][0]["tool_calls"] == CALLS  # "page": None was the policy's, "n" was not
    assert row["chosen"][1]["tool_calls"][0]["function"]["arguments"] == {"n": 1.5}
    assert row["prompt"] == [{"role": "user", "content": "find"}]
    files = str(tmp_path / "trajectories" / "*.parquet")
    row = load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))[0]
    assert row["criticality"] == [None, 0.5] and row["success"] is None and row["tokens_input_ids"] is None


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"extra": 1}, r"row 1: its columns.*unknown: \['extra'\]"),
        ({"kind": None}, "row 1: kind must not be None"),
        ({"confidence": "high"}, "row 1: confidence does not fit double"),
        ({"task_id": "\ud800"}, "row 1: task_id does not fit string"),
        ({"prompt_ids": [2**40]}, "row 1: tokens_prompt_ids does not fit"),
        ({"prompt": 3}, "row 1: prompt does not fit"),
        ({"chosen": [{"role": "assistant", "tool_calls": [{"n": float("nan")}]}]}, "row 1: chosen does not fit"),
    ],
)
def test_a_row_that_does_not_fit_is_named_and_no_file_is_left(tmp_path: Path, row: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        write_table(tmp_path / "p.parquet", "preferences", [preference(), preference(**row)], PREFERENCES)
    assert not list(tmp_path.iterdir())


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    row = preference()
    del row["chosen_mask"]
    with pytest.raises(DataError, match=r"Missing: \['chosen_mask'\]"):
        write_table(tmp_path / "p.parquet", "preferences", [row], PREFERENCES)


def test_a_fault_half_way_keeps_the_old_file(tmp_path: Path) -> None:
    path = write_table(tmp_path / "p.parquet", "preferences", [preference()], PREFERENCES)
    before = path.read_bytes()

    def rows() -> Any:
        yield from (preference() for _ in range(300))
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError):
        write_table(path, "preferences", rows(), PREFERENCES)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_a_broken_or_foreign_table_is_named(tmp_path: Path) -> None:
    path = write_table(tmp_path / "p.parquet", "preferences", [preference()], PREFERENCES)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"p\.parquet: not readable as Parquet.*same run_dir"):
        list(read_table(path))
    pq.write_table(pa.table({"a": [1]}), tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"f\.parquet: schema version none"):
        list(read_table(tmp_path / "f.parquet"))
    with pytest.raises(DataError, match="missing"):
        list(read_table(tmp_path / "none.parquet"))


def test_rows_of_a_run_are_those_that_were_written(tmp_path: Path) -> None:
    for shard in range(2):
        write_table(tmp_path / "filtered" / f"{shard}.parquet", "filtered", [trajectory(task_id=str(shard))], FILTERED)
    found = list(offline_agent.rows(tmp_path, "filtered"))
    assert [row["task_id"] for row in found] == ["0", "1"]
    assert found[0]["messages"][1]["tool_calls"] == CALLS
    with pytest.raises(DataError, match="Tables of .*: filtered Did you mean 'filtered'?"):
        next(offline_agent.rows(tmp_path, "filterd"))


def test_the_documented_way_of_pandas_gives_the_same_messages(tmp_path: Path) -> None:
    """Catches a change of the storage type that would make docs/data.md's lines wrong."""
    pandas = pytest.importorskip("pandas")
    write_table(tmp_path / "0.parquet", "filtered", [trajectory()], FILTERED)
    (texts,) = pandas.read_parquet(tmp_path)["messages"]
    parsed = [json.loads(text) for text in texts]
    (row,) = read_table(tmp_path / "0.parquet")
    assert parsed == row["messages"]
