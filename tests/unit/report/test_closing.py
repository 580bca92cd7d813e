from __future__ import annotations

from pathlib import Path

from offline_agent.report.closing import pairs_written, quarantine_written
from tests.helpers import rows as kit


def test_each_folder_of_pairs_has_its_own_count_and_only_rows_are_loaded(tmp_path: Path) -> None:
    long = [kit.pair(n, "tea cup", "mug", kind="trajectory") for n in (1, 2)]
    kit.run(tmp_path / "logs", long)
    text = pairs_written(tmp_path / "logs")
    assert "preferences/  0 pairs" in text and "multiturn_preferences/  2 pairs" in text
    assert text.count("load_dataset") == 1 and "/multiturn_preferences/*.parquet" in text


def test_a_quarantine_is_named_only_where_it_is(tmp_path: Path) -> None:
    assert quarantine_written(tmp_path) == ""
    (tmp_path / "quarantine.jsonl").touch()
    assert "quarantine.jsonl" in quarantine_written(tmp_path)
