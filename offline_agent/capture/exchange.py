"""Requests and answers of the chat API as bytes: read strictly, checked, and written again.

All of it is computation; one thread beside the event loop runs it, so that one body at a time is in memory as objects.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from offline_agent.capture.streaming import events
from offline_agent.errors import DataError
from offline_agent.logs import strict_json

MOST = 16 << 20  # bytes of a request: several times the text of a context of a million tokens
MOST_ANSWER = 64 << 20  # bytes of an answer, which has log-probabilities too


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _StreamOptions(_Part):
    include_usage: bool | None = None


class _Request(_Part):
    messages: list[dict[str, Any]] = Field(min_length=1)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None


class _Message(_Part):
    tool_calls: list[dict[str, Any]] | None = None


class _Choice(_Part):
    index: int = 0
    message: _Message
    logprobs: dict[str, Any] | None = None


class _Answer(_Part):
    choices: list[_Choice] = Field(min_length=1)


class _Outcome(_Part):
    model_config = ConfigDict(extra="forbid")
    success: bool | None = None
    reward: float | None = Field(None, ge=0, le=1)
    task_id: str | int | None = None


Form = TypeVar("Form", bound=BaseModel)


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
    form = _checked(_Request, given)
    body = {key: value for key, value in given.items() if key not in ("stream", "stream_options")}
    options = form.stream_options
    return Asked(
        strict_json.dumps(body),
        strict_json.dumps({**body, "return_token_ids": True, "logprobs": True}),
        bool(form.stream),
        bool(options and options.include_usage),
        bool(form.return_token_ids),
        bool(form.logprobs),
    )


def answered(raw: bytes, request: Asked) -> tuple[bytes, bytes]:
    """Return an answer in full, and as the agent asked for it: without what only the log needs, perhaps as a stream.

    Raises:
        DataError: It is no chat completion.
    """
    said = _read(raw, "the answer")
    _checked(_Answer, said)
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
    try:
        found = _checked(_Outcome, given).model_dump(exclude_none=True)
        if ("success" in found) == ("reward" in found):
            raise DataError(f"got {', '.join(given) or 'nothing'}")
    except DataError as error:
        raise DataError(f"{error}; wanted success (true or false) or reward (0 to 1), and perhaps task_id") from None
    return found


def error_body(text: str) -> bytes:
    """Return an error in the API's form."""
    return strict_json.dumps({"error": {"message": f"capture: {text}", "type": "capture_error", "code": None}})


def told(answer: bytes) -> dict[str, Any]:
    """Return the error that a body tells."""
    try:
        return _read(answer, "the answer")
    except DataError:
        return {"error": {"message": answer[:2000].decode(errors="replace")}}


def _read(raw: bytes, what: str) -> dict[str, Any]:
    try:
        value = strict_json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what} is no JSON: {str(error):.300}") from error
    if not isinstance(value, dict):
        raise DataError(f"{what} is a JSON {type(value).__name__}, not an object")
    return value


def _checked(form: type[Form], value: dict[str, Any]) -> Form:
    try:
        return form.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"{where:.100}: got {reprlib.repr(first['input'])}: {first['msg']}") from None
