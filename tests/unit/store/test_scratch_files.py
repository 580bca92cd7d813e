from __future__ import annotations

import os
from pathlib import Path

import pytest

from offline_agent.errors import DataError
from offline_agent.store.scratch_files import PieceFile, TextFile


def test_a_spill_that_somebody_changed_is_not_read_as_something_else(tmp_path: Path) -> None:
    middle = 50_000
    damages = (lambda raw: raw[:-3], lambda raw: raw[:5], lambda raw: raw[:middle] + b"\0\1\2" + raw[middle + 3 :])
    for damage in damages:
        spill = PieceFile(tmp_path, "pairs")
        spill.add(os.urandom(60_000))  # more than is buffered
        spill.add(os.urandom(60_000))
        spill._file.flush()
        raw = spill.path.read_bytes()
        spill.path.write_bytes(damage(raw))
        with pytest.raises(DataError, match=r"pairs.*with this run_dir"):
            list(spill.read())
        spill.close()


def test_pieces_come_back_as_often_as_asked(tmp_path: Path) -> None:
    spill = PieceFile(tmp_path, "pairs")
    assert list(spill.read()) == []
    for number in range(1, 4):
        spill.add(b"x" * number)
        assert [len(piece) for piece in spill.read()] == list(range(1, number + 1))
    spill.close()


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    spill = PieceFile(tmp_path, "pairs")
    spill._file.close()
    spill._file = open("/dev/full", "w+b", buffering=0)  # noqa: SIM115 - closed by `close`
    with pytest.raises(DataError, match=r"pairs.*the disk is full"):
        spill.add(b"piece")
    spill.close()


def test_texts(tmp_path: Path) -> None:
    texts = TextFile(tmp_path, "names")
    names = ["", "a", "ü\ud800", "x" * 9999]
    for number, name in enumerate(names):
        texts.add(name)
        assert texts[number] == name and texts[0] == ""
    assert [texts[i] for i in (3, 1, 2)] == [names[i] for i in (3, 1, 2)] and len(texts) == 4
    texts.close()
