from __future__ import annotations

from pathlib import Path

from offline_agent.report.closing import tables_written
from tests.helpers import rows as kit

SUMMARY = {"filtered": 3, "trajectories": 9}


def test_each_folder_of_pairs_has_its_own_count(tmp_path: Path) -> None:
    long = [kit.pair(n, "tea cup", "mug", kind="trajectory") for n in (1, 2)]
    kit.run(tmp_path / "logs", long)
    text = tables_written(SUMMARY, tmp_path / "logs", "episodes")
    assert "preferences/  0 pairs" in text and "multiturn_preferences/  2 pairs" in text and "9 episodes" in text
    assert f'data_files="{tmp_path}/logs/TABLE/*.parquet"' in text


def test_a_quarantine_is_named_only_where_it_is(tmp_path: Path) -> None:
    assert "quarantine.jsonl" not in tables_written(SUMMARY, tmp_path, "episodes")
    (tmp_path / "quarantine.jsonl").touch()
    assert "quarantine.jsonl" in tables_written(SUMMARY, tmp_path, "episodes")
