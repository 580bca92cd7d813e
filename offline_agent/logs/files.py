"""Files of logs: JSON lines, JSON, also compressed with gzip, Parquet, Arrow; record by record, with a name for each.

A damaged line is told and passed over: one bad line of a log is no reason to lose the others.

Parquet and Arrow files are those of data sets. Conversations come as lists of objects (structs, in Arrow), as JSON text
of such a list, and as lists of JSON texts, under several names; formats know them by `messages` and
`conversations` alone.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from offline_agent import strict_json
from offline_agent.errors import ConfigError, DataError, did_you_mean
from offline_agent.logs.conversation import TOOLS
from offline_agent.logs.episode import SESSIONS, TASKS, has_objects
from offline_agent.messages import bare, parsed
from offline_agent.store.files import LINE, WHOLE, blocks, check_unpacked, unpacked

TABLES = (".parquet", ".arrow")
_NAMES = ("messages", "conversations", "conversation", "trajectory")
_ROWS_AT_ONCE = 64
_VALUE = re.compile(r"true|false|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:e[+-]?\d+)?", re.I)


def unfolded(value: Any, table: bool = False) -> Any:
    """Return a JSON value of a log with its conversation as a list, under the name by which formats know it.

    A bare list of messages becomes the record that has nothing else. What holds no conversation is returned as it is.

    Args:
        value: The value.
        table: It is a table's row, whose conversation may hold what no JSON has.

    Raises:
        DataError: The text of a conversation is no JSON, or the conversation holds what is none: NaN, bytes, times.
    """
    if isinstance(value, list) and (name := _known(value, "")):
        return {name: value}
    if not isinstance(value, Mapping):
        return value
    for name in _NAMES:
        told = value.get(name)
        if isinstance(told, str) and told.lstrip().startswith("["):
            told = parsed(told, name)
        if isinstance(told, list) and told and isinstance(told[0], str) and told[0].lstrip().startswith("{"):
            told = [parsed(one, f"{name} {number}") for number, one in enumerate(told)]
        elif table and isinstance(told, list):
            try:
                json.dumps(told, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise DataError(f"{name}: {error}") from error
        place = _known(told, name)
        if told is not value.get(name) or (place != name and place not in value):
            value = {**{key: item for key, item in value.items() if key != name}, place: told}
    return value


def _known(turns: Any, name: str) -> str:
    """Return the name by which formats know a conversation; the given one where it is none."""
    if has_objects(turns, "from", "value"):
        return "conversations"
    parts: Any = turns[0].get("parts") if has_objects(turns) else None
    if has_objects(parts) and ("type" in parts[0] or "part_kind" in parts[0]):
        return "messages"
    if not has_objects(turns) or "messages" in turns[0] or "parts" in turns[0]:  # records, and Gemini's contents
        return name
    items = "type" in turns[0] and any("role" in one or "source" in one for one in turns if isinstance(one, Mapping))
    return "messages" if items or "role" in turns[0] else name


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet or Arrow file, or of a table of outcomes with commas (CSV).

    Raises:
        ValueError: It is not readable, from a row on.
        OSError: It cannot be opened.
    """
    import pyarrow as pa

    try:
        if path.name.endswith(".csv"):
            yield from _outcomes(path)
            return
        for batch in _batches(path):
            yield from batch.to_pylist()
    except (pa.ArrowException, csv.Error) as error:
        raise ValueError(str(error)) from error


def _outcomes(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table; cells but ids are numbers or true and false where they can be, None where empty."""
    with path.open("rb") as file:
        text = io.TextIOWrapper(file, _encoding(file), newline="")
        rows = csv.DictReader(text)
        if twice := sorted(name for name, count in Counter(rows.fieldnames or ()).items() if count > 1):
            raise ValueError(f"the first line has {', '.join(twice)} twice")
        for row in rows:
            if None in row or None in row.values():
                raise ValueError("the next one has other cells than the first line has names")
            yield {name: strict_json.loads(cell.lower()) if _VALUE.fullmatch(cell) and name not in (*SESSIONS, *TASKS)
                   else cell or None for name, cell in row.items()}  # fmt: skip


def _batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq
    if path.name.endswith(".parquet"):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(_ROWS_AT_ONCE)
        return
    with pa.memory_map(str(path)) as source:
        try:
            whole = pa.ipc.open_file(source)
        except pa.ArrowInvalid:  # as a stream, which `datasets` writes
            source.seek(0)
            yield from pa.ipc.open_stream(source)
            return
        for number in range(whole.num_record_batches):
            yield whole.get_batch(number)


SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz", *TABLES, ".eval", ".traj")
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
        value: The JSON value (`unfolded`); None where it is damaged.
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
    if path.name.endswith((*TABLES, TABLE)):
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


def whole(name: str, make: Callable[[], Iterable[Record]]) -> Iterator[Record]:
    """Yield the records that are made, all or none: what cannot be taken apart is one damaged record."""
    try:
        yield from tuple(make())
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        yield Record(name, None, f"its parts are of another form ({type(error).__name__}: {error})")


def _plain(value: Any) -> Any:
    """Return a table's row without nulls in its tools, which are Arrow's, and with decimals as numbers."""
    if isinstance(value, Mapping):
        return {name: bare(item) if name in TOOLS and has_objects(item) else _plain(item)
                for name, item in value.items()}  # fmt: skip
    return float(value) if isinstance(value, Decimal) else value


def _rows(path: Path) -> Iterator[Record]:
    number = -1
    try:
        for number, row in enumerate(rows(path)):
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
        return Record(name, unfolded(_plain(value) if table else value, table))
    except DataError as error:
        return Record(name, None, str(error))
