"""A log in several files: what is read, what is left unread, and what is noticed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import DataError
from offline_agent.store import event_files as parts
from offline_agent.store.events import EventLog

SMALL = 300  # bytes: two or three records a file


def records(count: int, trees: int = 4) -> list[dict[str, Any]]:
    """Records of trees, one tree after the other."""
    return [{"tree": f"t{n * trees // count}", "n": n, "text": "x" * 60} for n in range(count)]


def filled(path: Path, count: int = 20) -> list[dict[str, Any]]:
    out = records(count)
    log = EventLog(path, SMALL)
    for record in out:
        log.append(record)
    log.close()
    assert len(parts.files(path)) > 4
    return out


def opened(path: Path) -> EventLog:
    log = EventLog(path, SMALL)
    log.index()
    return log


def test_a_long_log_is_one_log(tmp_path: Path) -> None:
    path = tmp_path / "0000.jsonl"
    out = filled(path)
    assert list(EventLog(path).read()) == out
    log = opened(path)
    log.append({"tree": "t9", "n": 99})
    log.close()
    assert list(EventLog(path).read()) == [*out, {"tree": "t9", "n": 99}]
    assert all(file.stat().st_size < 2 * SMALL for file in parts.files(path))


def test_written_in_one_go_or_in_many_it_is_the_same_bytes(tmp_path: Path) -> None:
    out = filled(tmp_path / "a.jsonl")
    for record in out:
        log = EventLog(tmp_path / "b.jsonl", SMALL)
        log.append(record)
        log.close()
    one, other = parts.files(tmp_path / "a.jsonl"), parts.files(tmp_path / "b.jsonl")
    assert [f.read_bytes().replace(b'"a"', b'"b"')[20:60] for f in one] == [f.read_bytes()[20:60] for f in other]
    assert len(one) == len(other) and list(EventLog(tmp_path / "b.jsonl").read()) == out


def test_full_files_without_wanted_trees_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0000.jsonl"
    out = filled(path)
    seen: list[str] = []
    real = parts.lines
    monkeypatch.setattr(
        "offline_agent.store.events.lines", lambda file, *rest: seen.append(file.name) or real(file, *rest)
    )
    left = list(EventLog(path).read(without={"t0", "t1", "t2"}))
    assert left == [record for record in out if record["tree"] == "t3"]
    assert 0 < len(seen) <= len(parts.files(path)) // 2
    assert list(EventLog(path).read(without={"t0", "t2", "t3"})) == [r for r in out if r["tree"] == "t1"]


def test_an_index_knows_the_trees_of_earlier_sessions(tmp_path: Path) -> None:
    path = tmp_path / "0000.jsonl"
    out = records(24, trees=8)
    for record in out:
        log = EventLog(path, SMALL)
        log.append(record)
        log.close()
    trees = {record["tree"] for record in out}
    for tree in trees:
        assert list(EventLog(path).read(without=trees - {tree})) == [r for r in out if r["tree"] == tree]


def test_records_of_no_tree_are_always_read(tmp_path: Path) -> None:
    path = tmp_path / "0000.jsonl"
    log = EventLog(path, SMALL)
    for n in range(12):
        log.append({"n": n, "text": "x" * 60})
    log.close()
    assert len(list(EventLog(path).read(without={"t0"}))) == 12


def _flip(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"xxx", b"yyy", 1))


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def _shorten(file: Path) -> None:
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize("damage", [_flip, _cut, _shorten, Path.unlink])
@pytest.mark.parametrize("number", [0, 1])
def test_damage_in_a_full_file_is_named(tmp_path: Path, damage: Callable[[Path], None], number: int) -> None:
    path = tmp_path / "0000.jsonl"
    filled(path)
    damage(parts.path_of(path, number))
    names = parts.path_of(path, number).name
    if damage is _shorten:  # then the file after it does not fit
        names = parts.path_of(path, number + 1).name
    for work in (opened, lambda p: list(EventLog(p).read()), lambda p: EventLog(p, SMALL).append({})):
        with pytest.raises(DataError, match=rf"({names})[:,][\s\S]*run_dir"):
            work(path)
            EventLog(path, SMALL).append({})


def test_the_last_file_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "0000.jsonl"
    filled(path)
    last = parts.files(path)[-1]
    last.unlink()
    with pytest.raises(DataError, match=rf"{last.name}: missing"):
        list(EventLog(path).read())


def test_a_full_file_that_was_altered_at_the_same_time_of_change_is_read(tmp_path: Path) -> None:
    path = tmp_path / "0000.jsonl"
    filled(path)
    full = parts.path_of(path, 1)
    stat, data = full.stat(), full.read_bytes()
    full.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    os.utime(full, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(DataError, match="its checksum does not fit"):
        opened(path)


def test_missing_and_old_indexes_are_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "0000.jsonl"
    out = filled(path)
    indexes = sorted(tmp_path.glob("*.index.json"))
    assert len(indexes) == len(parts.files(path)) - 1
    before = [json.loads(index.read_text()) for index in indexes]
    indexes[0].unlink()
    indexes[1].write_text("{")
    os.utime(parts.path_of(path, 2))  # as a copy would have it
    assert list(EventLog(path).read(without={"t0", "t1", "t2"})) == [r for r in out if r["tree"] == "t3"]
    opened(path)
    after = [json.loads(index.read_text()) for index in indexes]
    assert before == after


def test_killed_between_the_next_file_and_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0000.jsonl"
    out = records(12)

    class Killed(BaseException):
        pass

    def kill(*arguments: Any) -> None:
        raise Killed

    log = EventLog(path, SMALL)
    monkeypatch.setattr(parts, "write_index", kill)
    written = 0
    with pytest.raises(Killed):
        for record in out:
            log.append(record)
            written += 1
    monkeypatch.undo()
    files = parts.files(path)
    assert len(files) == 2
    for torn in (files[1].read_bytes(), files[1].read_bytes()[:10], b""):
        files[1].write_bytes(torn)
        assert list(EventLog(path).read()) == out[:written]
        again = opened(path)
        for record in out[written:]:
            again.append(record)
        again.close()
        assert list(EventLog(path).read()) == out
        for file in parts.files(path)[1:]:
            file.unlink()
        for index in tmp_path.glob("*~*.index.json"):
            index.unlink()
        files[1].touch()


def test_a_disk_that_is_full_when_the_next_file_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0000.jsonl"
    log = EventLog(path, SMALL)
    written = []
    for record in records(12):
        if log._size >= SMALL:
            break
        log.append(record)
        written.append(record)
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if b"event_log" in data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    for _ in range(2):
        with pytest.raises(DataError, match=r"0000~000001\.jsonl: the disk is full"):
            log.append({"tree": "t8"})
    monkeypatch.undo()
    assert list(EventLog(path).read()) == written and parts.files(path) == [path]
    log.append({"tree": "t9"})
    log.close()
    assert list(EventLog(path).read()) == [*written, {"tree": "t9"}] and len(parts.files(path)) == 2


def test_logs_beside_each_other_are_not_mixed_up(tmp_path: Path) -> None:
    names = ["0000", "0000~ab", "a[b]", "a"]
    for name in names:
        log = EventLog(tmp_path / f"{name}.jsonl", SMALL)
        for n in range(9):
            log.append({"tree": name, "n": n, "text": "x" * 60})
        log.close()
    for name in names:
        found = list(EventLog(tmp_path / f"{name}.jsonl").read())
        assert [record["n"] for record in found] == list(range(9)) and {record["tree"] for record in found} == {name}
