from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from offline_agent.errors import DataError
from offline_agent.store.events import EventLog


def _filled(path: Path, count: int = 3) -> list[dict]:
    records = [{"n": number, "text": f"zeile\n{number} \ud800 ü"} for number in range(count)]
    log = EventLog(path)
    for record in records:
        log.append(record)
    log.close()
    return records


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    records = _filled(tmp_path / "e.jsonl")
    log = EventLog(tmp_path / "e.jsonl")
    log.append({})
    assert list(log.read()) == [*records, {}]
    log.close()


def test_each_line_is_json_with_a_checksum(tmp_path: Path) -> None:
    _filled(tmp_path / "e.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert len(lines) == 4 and all(len(line["crc"]) == 8 for line in lines)
    assert lines[0]["schema_version"] == 3


def test_an_append_is_with_the_operating_system_before_it_returns(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e.jsonl")
    log.append({"n": 1})
    assert list(EventLog(tmp_path / "e.jsonl").read()) == [{"n": 1}]  # another reader, nothing was closed
    log.close()


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert list(EventLog(tmp_path / "none.jsonl").read()) == []


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_dropped_and_cut_off_before_appending(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "e.jsonl"
    records = _filled(path)
    path.write_bytes(path.read_bytes()[:-cut])
    log = EventLog(path)
    assert list(log.read()) == records[:2]
    log.append({"n": "new"})
    log.close()
    assert list(EventLog(path).read()) == [*records[:2], {"n": "new"}]


def test_a_file_torn_in_its_header_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b'{"crc":"12')
    assert list(EventLog(path).read()) == []
    log = EventLog(path)
    log.append({"n": 1})
    log.close()
    assert list(EventLog(path).read()) == [{"n": 1}]


def _flip(lines: list[bytes]) -> None:
    lines[2] = lines[2].replace(b'"n":1', b'"n":7')


def _drop(lines: list[bytes]) -> None:
    del lines[2]


def _swap(lines: list[bytes]) -> None:
    lines[1], lines[2] = lines[2], lines[1]


def _foreign(lines: list[bytes]) -> None:
    lines[2] = b"not json at all\n"


@pytest.mark.parametrize("damage", [_flip, _drop, _swap, _foreign])
def test_a_damaged_line_is_named_and_nothing_is_destroyed(tmp_path: Path, damage) -> None:
    path = tmp_path / "e.jsonl"
    _filled(path, 5)
    lines = path.read_bytes().splitlines(keepends=True)
    damage(lines)
    path.write_bytes(b"".join(lines))
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"e\.jsonl, line [23]"):
        list(EventLog(path).read())
    with pytest.raises(DataError, match=r"e\.jsonl, line [23].*run_dir"):
        EventLog(path).append({"n": 1})
    assert path.read_bytes() == before


def test_another_schema_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import offline_agent.store.events as events

    monkeypatch.setattr(events, "LOG_VERSION", 99)
    _filled(tmp_path / "e.jsonl")
    monkeypatch.undo()
    with pytest.raises(DataError, match="schema version 99, allowed: 3"):
        list(EventLog(tmp_path / "e.jsonl").read())
    with pytest.raises(DataError, match="schema version 99"):
        EventLog(tmp_path / "e.jsonl").append({})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("beside", [{}, {"nothing": None}, {"long": 1 << 70}])
def test_numbers_json_does_not_know_are_refused(tmp_path: Path, number: float, beside: dict[str, object]) -> None:
    log = EventLog(tmp_path / "e.jsonl")
    with pytest.raises(ValueError):
        log.append({"x": [{"y": number}], **beside})
    log.append({"x": 1})
    assert list(log.read()) == [{"x": 1}]
    log.close()


@pytest.mark.parametrize("record", [
    {"text": "lone \ud800 surrogate"}, {"n": 1 << 70, "none": None}, {"text": "Grüße \u2028 \x00 \"", "f": 1e-7},
    {"floats": [0.1, -0.0, 1e300, 5e-324, 1 / 3], "none": None}, {"deep": [{"a": None}, [], {}]},
])  # fmt: skip
def test_what_json_can_say_comes_back_as_it_was(tmp_path: Path, record: dict[str, object]) -> None:
    log = EventLog(tmp_path / "e.jsonl")
    log.append(record)
    log.close()
    assert list(EventLog(tmp_path / "e.jsonl").read()) == [record]
    assert repr(next(EventLog(tmp_path / "e.jsonl").read())) == repr(record)


def test_records_of_trees_that_are_not_wanted_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    records = [{"tree": f'"t{n % 3}', "n": n} for n in range(9)] + [{"n": 9, "tree": '"t1'}, {"n": 10}]
    log = EventLog(path)
    for record in records:
        log.append(record)
    log.close()
    assert [record["n"] for record in EventLog(path).read(without={'"t0', '"t1'})] == [2, 5, 8, 10]


def test_a_full_disk_leaves_whole_lines_and_can_be_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "e.jsonl"
    log = EventLog(path)
    log.append({"n": 0})
    real, calls = os.write, []

    def full(fd: int, data: bytes) -> int:
        if calls:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        calls.append(1)
        return real(fd, data[:7])  # half a line goes in, then the disk is full

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DataError, match=r"e\.jsonl: the disk is full.*free some space"):
        log.append({"n": 1})
    monkeypatch.undo()
    assert path.read_bytes().endswith(b"\n")
    log.append({"n": 2})
    log.close()
    assert list(EventLog(path).read()) == [{"n": 0}, {"n": 2}]


def test_a_full_disk_on_sync_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path / "e.jsonl")
    log.append({"n": 0})

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="the disk is full"):
        log.close()
    monkeypatch.undo()
    assert list(EventLog(tmp_path / "e.jsonl").read()) == [{"n": 0}]


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    records = _filled(tmp_path / "e.jsonl")
    assert list(EventLog(tmp_path / "e.jsonl").read()) == records


def test_threads_do_not_tear_each_others_lines(tmp_path: Path) -> None:
    import threading

    log = EventLog(tmp_path / "e.jsonl")
    threads = [
        threading.Thread(target=lambda who=who: [log.append({"who": who, "n": n}) for n in range(200)])
        for who in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    found = list(EventLog(tmp_path / "e.jsonl").read())
    assert [[r["n"] for r in found if r["who"] == who] for who in range(4)] == [list(range(200))] * 4
