"""Files of an event log: checked lines, order, and indexes of full files."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from offline_agent.errors import DataError
from offline_agent.records import SCHEMA_VERSION
from offline_agent.store.files import disk_errors, write_atomic
from offline_agent.store.integrity import hash_file

START = b'{"crc":"'
_BODY = len(START) + 9  # 8 hex digits and the closing quote
_MEND = (
    "Restore the file from a copy, or name another run_dir to start anew; nothing was changed here. "
    "The lines before the broken one are sound."
)
_TREE = re.compile(rb'\{"tree":("(?:[^"\\]|\\.)*")[,}]')  # searches write the tree first: no need to parse the line


def lines(path: Path, file: BinaryIO, crc: int = 0, whole: bool = False) -> Iterator[tuple[bytes, int, int]]:
    """Yield (JSON, checksum, end of line in bytes) of every sound line.

    Args:
        path: Path of the file, for messages.
        file: The file, opened at its start.
        crc: Checksum of the line before.
        whole: Whether an incomplete last line is an error; else it is dropped.

    Raises:
        DataError: A checksum does not match.
    """
    end = 0
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n") and not whole:
            return
        found = _check(line, crc)
        if found is None:
            raise DataError(
                f"{path}, line {number}: its checksum does not fit: the line was altered, or a line before it "
                f"is missing. {_MEND}"
            )
        body, crc = found
        end += len(line)
        yield body, crc, end


def _check(line: bytes, before: int) -> tuple[bytes, int] | None:
    """Return the record's JSON and its checksum, or None when the line is broken."""
    rest = line[_BODY:-1]
    if not line.startswith(START) or rest[:1] not in (b",", b"}") or not line.endswith(b"\n"):
        return None
    body = b"{" + rest[1:] if rest[:1] == b"," else b"{}"
    crc = zlib.crc32(body, before)
    return (body, crc) if line[len(START) : _BODY] == b'%08x"' % crc else None


def path_of(first: Path, number: int) -> Path:
    """Return the path of a log's file by its number; number 0 is the first."""
    return first.with_name(f"{first.stem}~{number:06}.jsonl") if number else first


def files(first: Path) -> list[Path]:
    """Return the files of a log in order; an empty list where there is no log.

    Raises:
        DataError: A file in between is missing, or the file after one that has an index, and so is full.
    """
    further = first.parent.glob(f"{_escaped(first.stem)}~??????.jsonl")
    count = max([int(file.stem[-6:]) for file in further if file.stem[-6:].isdigit()], default=0) + 1
    if count == 1 and not first.exists():
        return []
    found = [path_of(first, number) for number in range(count)]
    missing = [path for path in found if not path.exists()]
    if not missing and _index_path(found[-1]).exists():
        missing = [path_of(first, count)]
    if missing:
        raise DataError(f"{missing[0]}: missing, though the log was longer. {_MEND}")
    return found


@dataclass(slots=True)
class FileScan:
    """Content of one file: header, checksum and length in bytes after the last complete line, and tree ids."""

    header: bytes | None
    crc: int
    end: int
    trees: set[str] = field(default_factory=set)


def scan(path: Path, before: int, whole: bool = False) -> FileScan:
    """Read and check a file; a missing file counts as empty. See `lines` for arguments and errors."""
    found = FileScan(None, before, 0)
    if not path.exists():
        return found
    with open(path, "rb") as file:
        for body, found.crc, found.end in lines(path, file, before, whole):
            if found.header is None:
                found.header = body
            else:
                _note_tree(body, found.trees)
    return found


def _note_tree(body: bytes, trees: set[str]) -> None:
    match = _TREE.match(body)
    if match is not None:
        trees.add(json.loads(match.group(1)))
    else:
        trees.add(tree_of(json.loads(body)))


def tree_of(record: Mapping[str, Any]) -> str:
    """Return the tree id of a record; "" where it belongs to no tree (no tree has this id)."""
    tree = record.get("tree")
    return "" if tree is None else str(tree)


@dataclass(frozen=True, slots=True)
class FullFile:
    """Facts about a full file that spare reading it.

    Attributes:
        before, crc: Checksum at its start and at its end.
        trees: Ids of the trees that it has records of; "" stands for records that belong to no tree.
    """

    before: int
    crc: int
    trees: frozenset[str]

    @classmethod
    def load(cls, path: Path) -> FullFile | None:
        """Return the content of the index; None where there is none that matches the file's size and content."""
        try:
            data = json.loads(_index_path(path).read_bytes())
            if (data["schema_version"], data["bytes"]) != (SCHEMA_VERSION, path.stat().st_size):
                return None
            if data["hash"] != hash_file(path):
                return None
            return cls(int(data["before"], 16), int(data["crc"], 16), frozenset(data["trees"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def full_file(path: Path, before: int) -> FullFile:
    """Return the facts about a full file: from its index, or by reading the file, which writes a new index.

    Args:
        path: The file.
        before: Checksum at its start.

    Raises:
        DataError: A line is broken.
    """
    known = FullFile.load(path)
    if known is not None and known.before == before:
        return known
    with disk_errors(path, "reading it"):
        found = scan(path, before, whole=True)
    return write_index(path, before, found.crc, found.trees)


def write_index(path: Path, before: int, crc: int, trees: Iterable[str]) -> FullFile:
    """Write the index of a full file. Raises DataError where it cannot be written."""
    names = frozenset(trees)
    data = {
        "schema_version": SCHEMA_VERSION, "bytes": path.stat().st_size, "hash": hash_file(path),
        "before": f"{before:08x}", "crc": f"{crc:08x}", "trees": sorted(names),
    }  # fmt: skip
    write_atomic(_index_path(path), json.dumps(data).encode("ascii"))
    return FullFile(before, crc, names)


def _index_path(path: Path) -> Path:
    return path.with_suffix(".index.json")


def _escaped(name: str) -> str:
    return re.sub(r"([\[\]*?])", r"[\1]", name)
