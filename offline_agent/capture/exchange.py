"""Requests and answers as bytes: read strictly, checked, translated, written again, and kept in a log.

One thread beside the event loop runs all of it, so that one body at a time is in memory as objects. Servers that parse
calls of tools lose token ids in streams, so an answer is asked for whole, and here made the stream that the agent asked
for.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from offline_agent import strict_json
from offline_agent.capture import anthropic, chat, responses
from offline_agent.capture.chat import Lost
from offline_agent.errors import DataError

MOST = 16 << 20  # bytes of a request: several times the text of a context of a million tokens


class Dialect(Protocol):
    """An API that agents and servers speak; its inner form is that of chat completions.

    Attributes:
        PATH: Where requests are posted.
        KEY: The header that has a key.
        WAITING: An event that says nothing.
    """

    PATH: str
    KEY: str
    WAITING: bytes

    def read_request(self, given: dict[str, Any], lost: Lost) -> dict[str, Any]:
        """Return a request in the inner form; what that has no place for is added to `lost`."""

    def write_request(self, request: dict[str, Any], lost: Lost) -> dict[str, Any]:
        """Return a request of the inner form, whose contents `chat.check_text` has passed, in this dialect."""

    def read_answer(self, said: dict[str, Any], lost: Lost) -> dict[str, Any]:
        """Return an answer in the inner form. Raises DataError where it is none."""

    def write_answer(self, answer: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return an answer of the inner form in this dialect; `given` is the request in this dialect."""

    def events(self, answer: Mapping[str, Any], usage: bool) -> Iterator[bytes]:
        """Yield the stream of an answer of this dialect, with the usage where chat completions tell it on demand."""

    def error(self, status: int, text: str) -> dict[str, Any]:
        """Return an error."""


DIALECTS: dict[str, Dialect] = {"chat": chat, "anthropic": anthropic, "responses": responses}
"""Dialects by name."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request.

    Attributes:
        client: The agent's dialect.
        given: As the agent sent it, without its wish for a stream.
        body: As the server gets it.
        with_tokens: The same, with the question for token ids and log-probabilities.
        kept: As the log keeps it, in the form of chat completions.
        lost: JSON objects of what was not translated, with commas between.
        stream, usage, token_ids, logprobs: What the agent asked for itself.
    """

    client: str
    given: bytes
    body: bytes
    with_tokens: bytes
    kept: bytes
    lost: bytes
    stream: bool
    usage: bool
    token_ids: bool
    logprobs: bool


def asked(raw: bytes, client: str, server: str) -> Asked:
    """Return a request. Raises DataError where it is none, or cannot be translated."""
    given = _read(raw, "the body")
    options = given.get("stream_options") or {}
    if not isinstance(options, dict):
        raise DataError(f"stream_options: got {reprlib.repr(options)}, allowed: an object")
    body = {key: value for key, value in given.items() if key not in ("stream", "stream_options")}
    lost: Lost = []
    with _form(f"the body is no request to /{DIALECTS[client].PATH}"):
        request = DIALECTS[client].read_request(body, lost)
        if client != server:
            chat.check_text(request, server)
        sent = body if client == server else DIALECTS[server].write_request(request, lost)
    told = strict_json.dumps(body)
    return Asked(
        client,
        told,
        told if sent is body else strict_json.dumps(sent),
        strict_json.dumps({**sent, "return_token_ids": True, "logprobs": True}) if server == "chat" else b"",
        told if request is body else strict_json.dumps(request),
        strict_json.dumps(lost)[1:-1],
        bool(given.get("stream")),
        bool(options.get("include_usage")),
        bool(given.get("return_token_ids")),
        bool(given.get("logprobs")),
    )


@contextmanager
def _form(what: str) -> Iterator[None]:
    """Raise DataError where a body that is being read has not the form of its dialect."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise DataError(f"{what}: {type(error).__name__} {error}") from error


def answered(raw: bytes, request: Asked, server: str) -> tuple[bytes, bytes, bytes]:
    """Return an answer in full, as the agent asked for it, and what was not translated.

    The agent's has not what only the log needs, and may be a stream.

    Raises:
        DataError: It is no answer, or one that the agent's dialect cannot say.
    """
    said, lost, client = _read(raw, "the answer"), Lost(), DIALECTS[request.client]
    with _form("it has not the form of its API"):
        answer = DIALECTS[server].read_answer(said, lost)
        whole = strict_json.dumps(answer)
        if not request.token_ids:
            answer.pop("prompt_token_ids", None)
        for choice in answer["choices"]:
            if not request.token_ids:
                choice.pop("token_ids", None)
            if not request.logprobs:
                choice["logprobs"] = None
        if request.client != server:
            said = client.write_answer(answer, strict_json.loads(request.given.decode()))
        body = b"".join(client.events(said, request.usage)) if request.stream else strict_json.dumps(said)
    return whole, body, b",".join(filter(None, (request.lost, strict_json.dumps(lost)[1:-1])))


def estimate(raw: bytes) -> int:
    """Return about how many tokens a request of Anthropic's form has: four bytes of its texts and tools are one."""
    return len(asked(raw, "anthropic", "chat").body) // 4


def refused(raw: bytes, status: int, client: str) -> dict[str, Any]:
    """Return the error of a server in the dialect of the agent."""
    try:
        told = _read(raw, "it")
        error = told.get("error") or told
        said = error.get("message") if isinstance(error, dict) else error
        text = str(said or told.get("detail") or told)
    except DataError:
        text = raw[:1000].decode(errors="replace")
    return DIALECTS[client].error(status, text)


def failed(raw: bytes, status: int, client: str) -> bytes:
    """Return the event of an error that comes when the stream of the agent has begun."""
    told = refused(raw, status, client)
    return chat.event(responses.failed(told) if client == "responses" else told)


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


def _read(raw: bytes, what: str) -> dict[str, Any]:
    try:
        value = strict_json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what} is no JSON: {str(error):.300}") from error
    if not isinstance(value, dict):
        raise DataError(f"{what} is a JSON {type(value).__name__}, not an object")
    return value


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
        self._cut = False  # a line was, and the next one must not go on with it
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except (OSError, ValueError) as error:
            raise DataError(f"log: {str(folder)!r:.80} cannot be written: {error}") from error

    def call(self, session: str | None, asked: Asked, response: bytes, lost: bytes) -> None:
        """Keep a call that was answered; `response` is JSON on one line, `lost` what was not translated of both.

        Raises:
            OSError: The disk refused.
        """
        known = {} if session is None else {"session_id": session}
        head = strict_json.dumps({**known, "time": _now(), "dialect": asked.client})[:-1]
        head += b',"untranslated":[' + lost + b"]" if lost else b""
        self._write(head + b',"request":' + asked.kept + b',"response":' + response + b"}\n")
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
        line = memoryview(b"\n" + record if self._cut else record)
        self._cut = True
        while line:  # a nearly full disk takes a part
            line = line[os.write(self._file, line) :]
        self._cut = False


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
