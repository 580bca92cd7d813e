"""Files of logs: JSON lines, JSON, also compressed with gzip; record by record, with a name for each.

A damaged line is told and passed over: one bad line of a log is no reason to lose the others.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from offline_agent.errors import ConfigError, DataError, did_you_mean

SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz", ".eval",
            ".db", ".sqlite", ".sqlite3")  # fmt: skip
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
          (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log, or what is left of it.

    Attributes:
        name: `file:line`; `file:number` for an element of a JSON list, from 0.
        value: The JSON value; None where it is damaged.
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
        elif not path.name.endswith(SUFFIXES):
            faults.append(f"source: {path} is of no kind that is read here; allowed: {', '.join(SUFFIXES)}")
        else:
            found.append(path)
    if faults:
        raise ConfigError(faults)
    return list(dict.fromkeys(found))


def records(path: Path) -> Iterator[Record]:
    """Yield the records of a file; it is read as a stream, but for a file of one JSON value.

    Raises:
        DataError: The file cannot be opened.
    """
    try:
        with _opened(path) as file:
            encoding = _encoding(file)
            if path.name.removesuffix(".gz").endswith(".json"):
                yield from _whole(path, file, encoding)
            elif encoding.startswith("utf-8"):
                yield from _lines(path, file, encoding)
            else:
                yield from _decoded(path, file, encoding)
    except (OSError, EOFError, zlib.error) as error:
        if not isinstance(error, FileNotFoundError | PermissionError):
            yield Record(str(path), None, f"the file ends in the middle, or is damaged ({error})")
            return
        raise DataError(f"{path}: not readable ({error})") from error


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path) if path.name.endswith(".gz") else open(path, "rb"))


def _encoding(file: IO[bytes]) -> str:
    start = file.read(4)
    file.seek(0)
    return next((name for mark, name in _MARKS if start.startswith(mark)), "utf-8")


def _lines(path: Path, file: IO[bytes], encoding: str) -> Iterator[Record]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield parsed(f"{path}:{number}", line, encoding if number == 1 else "utf-8")


def _decoded(path: Path, file: IO[bytes], encoding: str) -> Iterator[Record]:
    """Yield the lines of an encoding in which a line's end is not one byte."""
    reader = codecs.getreader(encoding)(file)
    number = 0
    try:
        for number, line in enumerate(reader, 1):
            if line.strip():
                yield parsed(f"{path}:{number}", line.encode(), "utf-8")
    except UnicodeError as error:
        yield Record(f"{path}:{number + 1}", None, f"it and what follows is no {encoding} text ({error})")


def _whole(path: Path, file: IO[bytes], encoding: str) -> Iterator[Record]:
    data = file.read()
    whole = parsed(str(path), data, encoding)
    if whole.damage is not None and b"\n" in data.strip():  # JSON lines under another name
        lines = list(_lines(path, io.BytesIO(data), encoding))
        if any(line.damage is None and isinstance(line.value, dict) for line in lines):
            yield from lines
            return
    if isinstance(whole.value, list):
        yield from (Record(f"{path}:{number}", value) for number, value in enumerate(whole.value))
    else:
        yield whole


def parsed(name: str, data: bytes, encoding: str) -> Record:
    """Return the record that some bytes are; a damaged one where they are no JSON."""
    try:
        return Record(name, json.loads(data.decode(encoding), parse_constant=_refuse))
    except UnicodeError as error:
        return Record(name, None, f"no {encoding} text ({error})")
    except (ValueError, RecursionError) as error:
        return Record(name, None, f"no JSON ({error}); perhaps it was cut")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
