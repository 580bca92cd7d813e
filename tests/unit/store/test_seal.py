"""Seals of folders: any altered bit is found, in the seal itself too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offline_agent.store import provenance

FILES = {"a.json": b'{"step": 3}', "deep/b.bin": bytes(range(40)), "empty": b""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert provenance.seal_faults(tmp_path) is None
    provenance.seal(tmp_path)
    return tmp_path


def test_what_is_as_it_was_written_has_no_faults_and_may_get_company(folder: Path) -> None:
    assert provenance.seal_faults(folder) == []
    (folder / "notes.txt").write_text("mine")
    assert provenance.seal_faults(folder) == []
    before = (folder / provenance.SEAL).read_bytes()
    (folder / "notes.txt").unlink()
    provenance.seal(folder)
    assert (folder / provenance.SEAL).read_bytes() == before


@pytest.mark.parametrize("name", ["a.json", "deep/b.bin", provenance.SEAL])
def test_any_flipped_bit_is_found(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    listed = json.loads((folder / provenance.SEAL).read_bytes())
    for place in range(len(whole)):
        for bit in range(8):
            (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            found = provenance.seal_faults(folder)
            if name != provenance.SEAL:
                assert found == [f"{name}: its contents are not those that were written"]
            elif not found:  # blanks between two entries mean nothing
                assert json.loads((folder / name).read_bytes()) == listed


def test_sizes_alone_are_compared_where_that_is_asked_for(folder: Path) -> None:
    (folder / "a.json").write_bytes(b'{"step": 4}')
    assert provenance.seal_faults(folder, contents=False) == []
    (folder / "deep" / "b.bin").write_bytes(b"")
    (folder / "empty").unlink()
    size, gone = provenance.seal_faults(folder, contents=False) or ()
    assert size == "deep/b.bin: it has 0 bytes, 40 were written" and gone.startswith("empty: missing")
