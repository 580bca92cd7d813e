"""quarantine.jsonl against damage: every line carries a checksum, and nothing is dropped or taken in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_agent.errors import DataError
from offline_agent.store.run_directory import Quarantine

ENTRIES = [("task", "t-1", "it did not open"), ("pair", "t-2/step", "no gap"), ("row", "t-3", "too long")]


def written(path: Path) -> Quarantine:
    """Return a closed file with the entries, depth 3 noted of each."""
    quarantine = Quarantine(path)
    for entry in ENTRIES:
        assert quarantine.add(*entry, depth=3)
    quarantine.close()
    return quarantine


def names(path: Path) -> list[str]:
    return [row["name"] for row in Quarantine(path).read()]


def test_a_flipped_bit_anywhere_is_told_or_costs_no_more_than_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.jsonl"
    written(path)
    whole, known = path.read_bytes(), names(path)
    torn = 0
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            try:
                found = names(path)
            except DataError as error:
                line = 1 + whole[:place].count(b"\n")
                assert f"quarantine.jsonl, line {line}:" in str(error)
                assert "Restore the file from a copy" in str(error)
            else:
                assert found == known[:-1] and place == len(whole) - 1
                torn += 1
    assert torn == 8  # the end of the last line: as if its writer had been killed


def test_a_line_that_is_missing_or_moved_is_told(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.jsonl"
    written(path)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    for altered in (first + third, second + third, second + first + third):
        path.write_bytes(altered)
        with pytest.raises(DataError, match="its checksum does not fit"):
            names(path)


def test_a_changed_letter_adds_no_line_on_resume(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.jsonl"
    written(path)
    altered = path.read_bytes().replace(b"no gap", b"no gas")
    path.write_bytes(altered)
    quarantine = Quarantine(path)
    with pytest.raises(DataError, match="line 2"):
        quarantine.add(*ENTRIES[1])
    quarantine.close()
    assert path.read_bytes() == altered
