"""Logs of every format, damaged in every way: nothing is lost, nothing is invented, and each damage is named."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from offline_agent.pipelines import import_logs
from tests.helpers.log_damage import CALLS, FILES, LINES, RECORDS, SHAPES, compare, write
from tests.helpers.log_writers import spoken


@pytest.mark.parametrize("format", SHAPES)
def test_nothing_is_lost_and_nothing_invented_of_damaged_logs(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(5)
    said = [spoken(rng, number) for number in range(150)]
    for number, one in enumerate(said):
        one.turns[-1].text += f" #{number}"
    expected = write(said, format, Path("logs"), rng, per_file=2)
    assert len(RECORDS) + len(CALLS) + len(LINES) + len(FILES) > 70
    assert import_logs.main(import_logs.COMMAND, ["source=logs", "run_dir=r", "tracking.uri=null"]) == 0
    found = compare(Path("r"), expected)
    assert (found.lost, found.invented) == ([], [])
    assert found.read > 80 and found.refused > 50
    entries = [json.loads(line) for line in Path("r/quarantine.jsonl").read_text().splitlines()]
    assert all(entry["name"].startswith("logs/") and entry["reason"] for entry in entries if entry["kind"] == "log")
