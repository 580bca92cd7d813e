"""Files of logs: JSON lines, JSON, also compressed with gzip, Parquet, Arrow; record by record, with a name for each.

A damaged line is told and passed over: one bad line of a log is no reason to lose the others.
"""

from __future__ import annotations

import codecs
import contextlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from offline_agent import strict_json
from offline_agent.errors import ConfigError, DataError, did_you_mean
from offline_agent.logs import datasets
from offline_agent.store.files import LINE, WHOLE, blocks, check_unpacked, unpacked

SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz", *datasets.SUFFIXES, ".eval", ".traj")
TABLE = ".csv"  # of outcomes; read where it is named, since folders of logs hold other tables, too
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
          (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))  # fmt: skip
_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log, or what is left of it.

    Attributes:
        name: `file:line`; `file:line.number` where a line has several objects; `file:number` for an element of a JSON
            list or a row of a table, from 0.
        value: The JSON value (`datasets.unfolded`); None where it is damaged.
        damage: Why it cannot be read; None where it can.
    """

    name: str
    value: Any
    damage: str | None = None


def find(sources: Sequence[str]) -> list[Path]:
    """Return the files of some files and folders, in name order.

    Raises:
        ConfigError: A path is missing or of another kind, or a folder holds no log: every fault.
    """
    faults: list[str] = []
    found: list[Path] = []
    for source in sources:
        path = Path(source).expanduser()
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(SUFFIXES))
            found += inside
            if not inside:
                faults.append(f"source: {path} holds no log; read are files that end in {', '.join(SUFFIXES)}")
        elif not path.exists():
            near = did_you_mean(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
            faults.append(f"source: there is no {path}.{near}")
        elif not path.name.endswith((*SUFFIXES, TABLE)) or not path.is_file():
            allowed = ", ".join((*SUFFIXES, TABLE))
            faults.append(f"source: {path} is of no kind that is read here; allowed: regular files, {allowed}")
        else:
            found.append(path)
    if faults:
        raise ConfigError(faults)
    return list(dict.fromkeys(found))


def records(path: Path) -> Iterator[Record]:
    """Yield the records of a file; it is read as a stream, but for a file of one JSON value.

    Raises:
        DataError: The file cannot be opened, or has more in it, or in one line, than is allowed.
    """
    last = "its start"
    if path.name.endswith((*datasets.SUFFIXES, TABLE)):
        yield from _rows(path)
        return
    try:
        with unpacked(path) as file:
            encoding, size = _encoding(file), path.stat().st_size
            whole = path.name.removesuffix(".gz").endswith((".json", ".traj"))
            content = blocks(file, path, size, WHOLE if whole else None)
            for record in (_whole if whole else _lines)(path, content, encoding):
                last = record.name
                yield record
    except (OSError, EOFError, zlib.error) as error:
        if not isinstance(error, FileNotFoundError | PermissionError):
            yield Record(str(path), None, f"the file ends in the middle, or is damaged, after {last} ({error})")
            return
        raise DataError(f"{path}: not readable ({error})") from error


def _rows(path: Path) -> Iterator[Record]:
    number = -1
    try:
        for number, row in enumerate(datasets.rows(path)):
            yield _record(f"{path}:{number}", row, table=True)
    except (OSError, ValueError) as error:
        last = f"row {number}" if number >= 0 else "its start"
        yield Record(str(path), None, f"not readable as {path.suffix[1:]} after {last} ({error})")


def _encoding(file: BufferedIOBase) -> str:
    """Return the encoding that a file's mark says, UTF-8 without one; the mark is passed over."""
    start = file.read(4)
    mark, name = next(((mark, name) for mark, name in _MARKS if start.startswith(mark)), (b"", "utf-8"))
    file.seek(len(mark))
    return name


def _lines(path: Path, content: Iterable[bytes], encoding: str) -> Iterator[Record]:
    space = _SPACE if encoding == "utf-8" else _SPACE + b"\0"
    for number, line in enumerate(_split(path, content, "\n".encode(encoding)), 1):
        if line.strip(space):
            yield from _line(f"{path}:{number}", line, encoding)


def _split(path: Path, content: Iterable[bytes], end: bytes) -> Iterator[bytes]:
    """Yield the lines of some blocks; `end` ends a line, and has as many bytes as every character or fewer."""
    left, searched, number = b"", 0, 1
    for block in content:
        left += block
        start = 0
        while (at := left.find(end, searched)) >= 0:
            searched = at + 1
            if (at - start) % len(end) == 0:  # else it is parts of two characters
                yield left[start : at + len(end)]
                start = searched = at + len(end)
                number += 1
        left, searched = left[start:], max(0, len(left) - start - len(end) + 1)
        check_unpacked(f"{path}:{number}", len(left), len(left), LINE)
    if left:
        yield left


def _whole(path: Path, content: Iterable[bytes], encoding: str) -> Iterator[Record]:
    data = b"".join(content)
    whole = _parsed(str(path), data, encoding)
    if whole.damage is not None and "\n".encode(encoding) in data:  # JSON lines under another name
        lines = list(_lines(path, [data], encoding))
        if any(line.damage is None and isinstance(line.value, dict) for line in lines):
            yield from lines
            return
    if isinstance(whole.value, list):
        yield from (_record(f"{path}:{number}", value) for number, value in enumerate(whole.value))
    else:
        yield whole


def _line(name: str, data: bytes, encoding: str) -> Iterator[Record]:
    """Yield the record of a line; those of objects that a writer put on one line without an end between them."""
    record = _parsed(name, data, encoding)
    several: list[Any] = []
    if record.damage is not None:
        with contextlib.suppress(ValueError, RecursionError):
            several = list(strict_json.values(data.decode(encoding)))
    if len(several) > 1 and all(isinstance(value, dict) for value in several):
        yield from (_record(f"{name}.{number}", value) for number, value in enumerate(several))
    else:
        yield record


def _parsed(name: str, data: bytes, encoding: str) -> Record:
    """Return the record that some bytes are; a damaged one where they are no JSON."""
    try:
        return _record(name, strict_json.loads(data.decode(encoding)))
    except UnicodeError as error:
        return Record(name, None, f"no {encoding} text ({error})")
    except (ValueError, RecursionError) as error:
        return Record(name, None, f"no JSON ({error}); perhaps it was cut")


def _record(name: str, value: Any, table: bool = False) -> Record:
    """Return the record of a JSON value or a table's row; a damaged one where its conversation is not readable."""
    try:
        return Record(name, datasets.unfolded(value, table))
    except DataError as error:
        return Record(name, None, str(error))
