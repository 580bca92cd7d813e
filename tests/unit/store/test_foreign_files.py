"""Files of others: no device is read, and what is unpacked is bounded."""

from __future__ import annotations

import errno
import gzip
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_agent import formats
from offline_agent.errors import ConfigError, DataError
from offline_agent.formats import inspect
from offline_agent.judges.models.asking import AnswerCache
from offline_agent.logs import files
from offline_agent.policies.weights import tensor_shapes
from offline_agent.runner.components import _from_file
from offline_agent.store import files as store_files
from offline_agent.store.files import read_json, write_json
from offline_agent.store.provenance import hash_path


def _gz(folder: Path) -> Path:
    path = folder / "log.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * 1_000_000 + b"\n" + b"{}\n" * 100_000))
    return path


def _line(folder: Path) -> Path:
    path = folder / "log.jsonl"
    path.write_bytes(b" " * 3_000_000)
    return path


def _archive(folder: Path) -> Path:
    path = folder / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.json", json.dumps({"eval": {}}))
        file.writestr("samples/1.json", b" " * 3_000_000)
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [(_gz, "out of"), (_line, "in one piece"), (_archive, "out of")],
)
def test_what_unpacks_to_too_much_is_refused(
    make: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path)  # type: ignore[operator]
    monkeypatch.setattr(store_files, "FREE", 100_000)
    monkeypatch.setattr(store_files, "RATIO", 100)
    monkeypatch.setattr(files, "LINE", 2_000_000)
    with pytest.raises(DataError, match=said):
        list(formats.records(path))


def test_a_member_whose_size_is_a_lie_is_read_no_further(tmp_path: Path) -> None:
    path = _archive(tmp_path)
    path.write_bytes(path.read_bytes().replace((3_000_000).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    assert [record.damage is not None for record in inspect.archive(path)] == [True]


@pytest.mark.parametrize("damage", ["content", "encrypted"])
def test_damage_in_a_member_costs_no_other(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("header", "samples/1", "samples/2"):
            file.writestr(f"{name}.json", json.dumps({"eval": {}, "id": name}))
        at = {"content": file.infolist()[1].header_offset + 30 + len("samples/1.json"), "encrypted": file.start_dir}
    data = bytearray(path.read_bytes())
    if damage == "content":
        data[at["content"]] = 0xFF  # a kind of block that deflate does not have
    else:
        second = data.index(b"PK\x01\x02", at["encrypted"] + 1)  # the member's entry in the directory
        data[second + 8] |= 1
    path.write_bytes(data)
    assert [record.damage is None for record in inspect.archive(path)] == [False, True]


def test_a_device_or_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.jsonl")
    for path in (Path("/dev/zero"), tmp_path / "log.jsonl"):
        with pytest.raises(ConfigError, match="allowed: a regular file"):
            list(_from_file(None, path, "train"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="of no kind"):
        files.find([str(tmp_path / "log.jsonl")])


def _special(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def _weights(path: Path) -> None:
    (path.parent / "config.json").write_text("{}")
    path.rename(path.with_name("model.safetensors"))
    tensor_shapes(path.parent)


@pytest.mark.parametrize(
    "use",
    [
        hash_path,
        lambda path: hash_path(path.parent),
        lambda path: hash_path("/dev/zero"),
        lambda path: AnswerCache(str(path)),
        lambda path: AnswerCache("/dev/null"),
        lambda path: read_json(path),
        lambda path: write_json(path, {}),
        _weights,
    ],
)
def test_a_named_device_or_pipe_is_neither_read_nor_replaced(use: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises((ConfigError, DataError), match="allowed: a regular file"):
        use(_special(tmp_path))


def test_a_folder_that_cannot_be_read_does_not_drop_out_of_a_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone catches two folders of equal hash though part of one was not read; root may read all, so it is told no."""
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def refusing(path: str) -> object:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(DataError, match="listing it"):
        hash_path(tmp_path)
