"""Requests and answers of the chat API as bytes: read strictly, checked, written again, and kept in a log.

One thread beside the event loop runs all of it, so that one body at a time is in memory as objects. Servers that parse
calls of tools lose token ids in streams, so an answer is asked for whole, and here made the stream that the agent asked
for.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from offline_agent import strict_json
from offline_agent.errors import DataError

MOST = 16 << 20  # bytes of a request: several times the text of a context of a million tokens


@dataclass(frozen=True, slots=True)
class Asked:
    """A request.

    Attributes:
        body: As the agent sent it, without its wish for a stream.
        with_tokens: The same, with the question for token ids and log-probabilities.
        stream, usage, token_ids, logprobs: What the agent asked for itself.
    """

    body: bytes
    with_tokens: bytes
    stream: bool
    usage: bool
    token_ids: bool
    logprobs: bool


def asked(raw: bytes) -> Asked:
    """Return a request. Raises DataError where it is none."""
    given = _read(raw, "the body")
    _dicts("messages", given.get("messages"))
    options = given.get("stream_options") or {}
    if not isinstance(options, dict):
        raise DataError(f"stream_options: got {reprlib.repr(options)}, allowed: an object")
    body = {key: value for key, value in given.items() if key not in ("stream", "stream_options")}
    return Asked(
        strict_json.dumps(body),
        strict_json.dumps({**body, "return_token_ids": True, "logprobs": True}),
        bool(given.get("stream")),
        bool(options.get("include_usage")),
        bool(given.get("return_token_ids")),
        bool(given.get("logprobs")),
    )


def _dicts(name: str, value: Any) -> None:
    """Raise DataError where a value is no list of objects, or an empty one."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise DataError(f"{name}: got {reprlib.repr(value)}, allowed: a list of objects")


def answered(raw: bytes, request: Asked) -> tuple[bytes, bytes]:
    """Return an answer in full, and as the agent asked for it: without what only the log needs, perhaps as a stream.

    Raises:
        DataError: It is no chat completion.
    """
    said = _read(raw, "the answer")
    _dicts("choices", said.get("choices"))
    for choice in said["choices"]:
        _dicts("choices.message", [choice.get("message")])
        _dicts("tool_calls", choice["message"].get("tool_calls") or [{}])
    whole = strict_json.dumps(said)
    if not request.token_ids:
        said.pop("prompt_token_ids", None)
    for choice in said["choices"]:
        if not request.token_ids:
            choice.pop("token_ids", None)
        if not request.logprobs:
            choice["logprobs"] = None
    return whole, b"".join(events(said, request.usage)) if request.stream else strict_json.dumps(said)


def outcome(raw: bytes) -> dict[str, Any]:
    """Return what a caller tells of the end of a session. Raises DataError where it is not an outcome alone."""
    given = _read(raw, "the body")
    success, reward, task = (given.get(name) for name in ("success", "reward", "task_id"))
    fits = isinstance(success, bool) if reward is None else success is None and _is_share(reward)
    if not fits or given.keys() - {"success", "reward", "task_id"} or not isinstance(task, str | int | None):
        raise DataError(
            f"got {reprlib.repr(given)}; wanted success (true or false) or reward (0 to 1), and perhaps task_id alone"
        )
    return {name: value for name, value in given.items() if value is not None}


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def error_body(text: str) -> bytes:
    """Return an error in the API's form."""
    return strict_json.dumps({"error": {"message": f"capture: {text}", "type": "capture_error", "code": None}})


def _read(raw: bytes, what: str) -> dict[str, Any]:
    try:
        value = strict_json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what} is no JSON: {str(error):.300}") from error
    if not isinstance(value, dict):
        raise DataError(f"{what} is a JSON {type(value).__name__}, not an object")
    return value


END = b"data: [DONE]\n\n"


def events(answer: Mapping[str, Any], usage: bool) -> Iterator[bytes]:
    """Yield the events of a chat completion: for each choice its message, then its end.

    Args:
        answer: The completion.
        usage: Whether the last event counts tokens (`stream_options.include_usage`).
    """
    head = {key: answer[key] for key in ("id", "created", "model", "system_fingerprint") if key in answer}
    head["object"] = "chat.completion.chunk"
    more = {"usage": None} if usage else {}
    for choice in answer.get("choices") or ():
        index, message = choice.get("index", 0), dict(choice.get("message") or {})
        calls = message.get("tool_calls")
        if calls:
            message["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        else:
            message.pop("tool_calls", None)
        logprobs = {"logprobs": choice["logprobs"]} if choice.get("logprobs") else {}
        part = {"index": index, "delta": message, "finish_reason": None, **logprobs}
        yield event({**head, "choices": [part], **more})
        end = {"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}
        yield event({**head, "choices": [end], **more})
    if usage:
        yield event({**head, "choices": [], "usage": answer.get("usage")})
    yield END


def event(data: Mapping[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + strict_json.dumps(data) + b"\n\n"


class CallLog:
    """A file of calls and outcomes, `calls-<time>-<process>.jsonl`.

    A line is one `write` to a file that is opened for appending, so it outlives a killed process; what a failing disk
    keeps is the system's matter. A line that is cut is named by `import_logs`, and costs no other line.

    Args:
        folder: The folder; it is made.

    Attributes:
        path: The file.
        calls, outcomes: Lines written.

    Raises:
        DataError: The folder or the file cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"calls-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}.jsonl"
        self.calls = self.outcomes = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except (OSError, ValueError) as error:
            raise DataError(f"log: {str(folder)!r:.80} cannot be written: {error}") from error

    def call(self, session: str | None, request: bytes, response: bytes) -> None:
        """Keep a call that was answered; `request` and `response` are bodies, JSON on one line.

        Raises:
            OSError: The disk refused.
        """
        known = {} if session is None else {"session_id": session}
        head = strict_json.dumps({**known, "time": _now()})[:-1]
        self._write(head + b',"request":' + request + b',"response":' + response + b"}\n")
        self.calls += 1

    def outcome(self, session: str, told: Mapping[str, Any]) -> None:
        """Keep the outcome of a session.

        Raises:
            OSError: The disk refused.
        """
        self._write(strict_json.dumps({**told, "session_id": session, "time": _now()}) + b"\n")
        self.outcomes += 1

    def close(self) -> None:
        """Close the file."""
        os.fsync(self._file)
        os.close(self._file)

    def _write(self, record: bytes) -> None:
        line = memoryview(record)
        while line:  # a nearly full disk takes a part
            line = line[os.write(self._file, line) :]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
