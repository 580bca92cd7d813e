"""The files of an event log: their lines, their order, and what is known of those that are full."""

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

START = b'{"crc":"'
_BODY = len(START) + 9  # 8 hex digits and the closing quote
_MEND = (
    "Restore the file from a copy, or name another run_dir to start anew; nothing was changed here. "
    "The lines before the broken one are sound."
)
_TREE = re.compile(rb'\{"tree":("(?:[^"\\]|\\.)*")[,}]')  # where a search puts it


def lines(path: Path, file: BinaryIO, crc: int = 0, whole: bool = False) -> Iterator[tuple[bytes, int, int]]:
    """Yield (JSON, checksum, end of line in bytes) of every sound line.

    Args:
        path: The file's, for messages.
        file: From its beginning.
        crc: Checksum of the line before.
        whole: A last line without its end is an error; else it is dropped.

    Raises:
        DataError: A checksum does not fit.
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
    """Return the files of a log in order; none where there is no log.

    Raises:
        DataError: One in between is missing, or the one after a file that is known to be full.
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
class Scan:
    """What is in a file: its header, checksum and length in bytes after the last whole line, and its trees."""

    header: bytes | None
    crc: int
    end: int
    trees: set[str] = field(default_factory=set)


def scan(path: Path, before: int, whole: bool = False) -> Scan:
    """Read and check a file; a missing one is empty. See `lines` for the arguments and what is raised."""
    found = Scan(None, before, 0)
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
    """Return the tree that a record is of; "" for none, which no tree is called."""
    tree = record.get("tree")
    return "" if tree is None else str(tree)


@dataclass(frozen=True, slots=True)
class Sealed:
    """What is known of a file that is full, without reading it.

    Attributes:
        before, crc: The checksum at its beginning and at its end.
        trees: Those it has records of; a record of no tree counts as one of tree "".
    """

    before: int
    crc: int
    trees: frozenset[str]

    @classmethod
    def load(cls, path: Path) -> Sealed | None:
        """Return what the index says; None where there is none that fits the file as it is (size, time of change)."""
        try:
            data = json.loads(_index_path(path).read_bytes())
            stat = path.stat()
            if (data["schema_version"], data["bytes"], data["changed"]) != (
                SCHEMA_VERSION, stat.st_size, stat.st_mtime_ns
            ):  # fmt: skip
                return None
            return cls(int(data["before"], 16), int(data["crc"], 16), frozenset(data["trees"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def sealed(path: Path, before: int) -> Sealed:
    """Return what is known of a full file, from its index, else by reading it; then the index is made anew.

    Args:
        path: The file.
        before: The checksum at its beginning.

    Raises:
        DataError: A line is broken.
    """
    known = Sealed.load(path)
    if known is not None and known.before == before:
        return known
    with disk_errors(path, "reading it"):
        found = scan(path, before, whole=True)
    return write_index(path, before, found.crc, found.trees)


def write_index(path: Path, before: int, crc: int, trees: Iterable[str]) -> Sealed:
    """Write the index of a full file. Raises DataError where the disk refused."""
    stat, names = path.stat(), frozenset(trees)
    data = {
        "schema_version": SCHEMA_VERSION, "bytes": stat.st_size, "changed": stat.st_mtime_ns,
        "before": f"{before:08x}", "crc": f"{crc:08x}", "trees": sorted(names),
    }  # fmt: skip
    write_atomic(_index_path(path), json.dumps(data).encode("ascii"))
    return Sealed(before, crc, names)


def _index_path(path: Path) -> Path:
    return path.with_suffix(".index.json")


def _escaped(name: str) -> str:
    return re.sub(r"([\[\]*?])", r"[\1]", name)
