"""Traces of rLLM's model gateway: its SQLite database, or the same traces as JSON lines; one call of the API a trace.

A trace has `messages`, `response_message`, `prompt_token_ids`, `completion_token_ids` and `logprobs`; the tools are in
`raw_request`. Task and outcome are read from the trace and from its `metadata`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError
from offline_agent.formats import openai
from offline_agent.logs.episode import Fields, LoggedEpisode, at, inner
from offline_agent.logs.files import Record, parsed
from offline_agent.store.files import LINE

NAME = "rllm"
DATABASES = (".db", ".sqlite", ".sqlite3")

_TICK = 1_000  # instructions between two looks at the limit


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    if {"trace_id", "messages", "response_message"} <= record.keys():
        return "trace_id, messages and response_message"
    return None


def database(path: Path) -> Iterator[Record]:
    """Yield the traces of a gateway's database in the order in which they were stored, named by `trace_id`.

    Raises:
        DataError: It is no SQLite database, has no table `traces` with `trace_id` and `data`, or reading takes more
            instructions than any sound database of its size.
    """
    connection, opened = None, False
    size = sum(file.stat().st_size for file in (path, path.with_name(f"{path.name}-wal")) if file.exists())
    left = most = 1_000 + size // 100  # a row has eight bytes at least, and takes some six instructions

    def watch() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        connection.text_factory = bytes  # a damaged text is one damaged record
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LINE)
        connection.set_progress_handler(watch, _TICK)
        kinds = [row[2] for row in connection.execute("PRAGMA table_list(traces)") if row[0] == b"main"]
        columns = {str(row[1], "utf-8", "replace") for row in connection.execute("PRAGMA table_info(traces)")}
        if kinds != [b"table"] or not {"trace_id", "data"} <= columns:  # a view or virtual table may have no end
            raise DataError(f"{path}: no table traces(trace_id, data), so it is no database of rLLM's gateway")
        opened = True
        for id, data in connection.execute("SELECT trace_id, data FROM traces ORDER BY rowid"):  # no sort: a stream
            yield _row(f"{path}:{_told(id)}", data)
    except sqlite3.Error as error:
        if left < 0:
            raise DataError(
                f"{path}: reading it took more than {most * _TICK:,} instructions, more than a sound database of "
                f"{size:,} bytes needs. Dump its table traces into a new database and name that"
            ) from error
        if not opened:
            raise DataError(f"{path}: not readable as an SQLite database ({error})") from error
        yield Record(str(path), None, f"the database is damaged from here on ({error})")
    finally:
        if connection is not None:
            connection.close()


def _row(name: str, data: Any) -> Record:
    if not isinstance(data, bytes):
        return Record(name, None, f"data: got {type(data).__name__}, wanted the JSON text of a trace")
    return parsed(name, data, "utf-8")


def _told(id: Any) -> str:
    return str(id, "utf-8", "replace") if isinstance(id, bytes) else str(id)


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    told = {**inner(record, "metadata"), **record}
    request = {"messages": record["messages"], "tools": at(record, "raw_request.tools")}
    yield from openai.read({**told, "request": request, "response": _response(record)}, name, fields)


def _response(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response of a trace in OpenAI's form; all choices, where the trace keeps the whole response."""
    choices = at(record, "raw_response.choices")
    if isinstance(choices, list) and len(choices) > 1:
        return {"prompt_token_ids": record.get("prompt_token_ids") or None, "choices": choices}
    logprobs = record.get("logprobs")
    choice = {
        "message": _message(record["response_message"]),
        "finish_reason": record.get("finish_reason"),
        "token_ids": record.get("completion_token_ids") or None,
        "logprobs": {"content": [{"logprob": value} for value in logprobs]} if isinstance(logprobs, list) else None,
    }
    return {"prompt_token_ids": record.get("prompt_token_ids") or None, "choices": [choice]}


def _message(message: Any) -> dict[str, Any]:
    """Return a response; the gateway keeps the calls of a stream in pieces, which are joined."""
    if not isinstance(message, Mapping) or not message:
        raise DataError("response_message: it is empty, so the call was not answered")
    out = dict(message)
    if isinstance(out.get("tool_calls"), list):
        out["tool_calls"] = _joined(out["tool_calls"])
    return out


def _joined(pieces: list[Any]) -> list[Any]:
    """Return calls of which a stream gave pieces with the same `index`: the name first, the arguments bit by bit."""
    if not all(isinstance(piece, Mapping) and isinstance(piece.get("index"), int) for piece in pieces):
        return pieces
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        function = piece.get("function")
        if not isinstance(function, Mapping):
            raise DataError(f"response_message: a piece of a tool call: got {json.dumps(piece)[:60]}")
        call = calls.setdefault(piece["index"], {"id": None, "function": {"name": "", "arguments": ""}})
        call["id"] = call["id"] or piece.get("id")
        for name in ("name", "arguments"):
            value = function.get(name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise DataError(f"response_message: {name} of a tool call: got {value!r:.60}, wanted text")
            call["function"][name] += value
    return [calls[index] for index in sorted(calls)]
