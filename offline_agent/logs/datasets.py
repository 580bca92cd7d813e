"""Rows of data sets as records: Parquet and Arrow files, and conversations that stand in a record as JSON text.

Conversations come as lists of objects (structs, in Arrow), as JSON text of such a list, and as lists of JSON texts,
under several names; formats know them by `messages` and `conversations` alone.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError
from offline_agent.logs.episode import SESSIONS, TASKS, has_objects
from offline_agent.messages import parsed

SUFFIXES = (".parquet", ".arrow")
_NAMES = ("messages", "conversations", "conversation", "trajectory")
_ROWS_AT_ONCE = 64
_VALUE = re.compile(r"true|false|-?(?:0|[1-9]\d*)(?:\.\d+)?", re.I)


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
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            if None in row or None in row.values():
                raise ValueError("the next one has other cells than the first line has names")
            yield {name: json.loads(cell.lower()) if _VALUE.fullmatch(cell) and name not in (*SESSIONS, *TASKS)
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
