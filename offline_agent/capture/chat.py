"""OpenAI chat completions: the form in which every call is kept, and into which the other dialects are brought.

A dialect is a module with the functions of `exchange.Dialect`. What one of them has no place for goes into a list of
`{"at": place, "value": value}`, which is kept beside the call. Cache marks, citations, ids and signatures, which no
model reads, are passed over.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from offline_agent import strict_json
from offline_agent.errors import DataError

PATH = "chat/completions"
KEY = "authorization"
WAITING = b": waiting\n\n"
Lost = list[dict[str, Any]]
_EMPTY: tuple[Any, ...] = (None, "", [], {})


def dicts(name: str, value: Any) -> None:
    """Raise DataError where a value is no list of objects, or an empty one."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise DataError(f"{name}: got {reprlib.repr(value)}, allowed: a list of objects")


def lose(lost: Lost, at: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Note what an object has beyond the keys that are known."""
    lost.extend(
        {"at": f"{at}{key}", "value": value} for key, value in given.items() if key not in known and value not in _EMPTY
    )


def renamed(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of an object that are there, under other names."""
    return {new: given[old] for old, new in names.items() if given.get(old) is not None}


def text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose parts are texts alone."""
    content = message.get("content") or message.get("refusal") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def content(parts: list[dict[str, Any]]) -> Any:
    """Return the content of a message: a text, or the parts where there are several or one that is no text."""
    return parts[0]["text"] if [part["type"] for part in parts] == ["text"] else parts or ""


def picture(source: Any) -> dict[str, Any] | None:
    """Return the part of a picture from its URL, or from Anthropic's source of it; None for anything else."""
    if isinstance(source, Mapping):
        data = f"data:{source.get('media_type')};base64,{source.get('data')}"
        source = data if source.get("type") == "base64" else source.get("url")
    return {"type": "image_url", "image_url": {"url": source}} if isinstance(source, str) else None


def turn(thoughts: list[str], parts: list[dict[str, Any]], calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a turn of the policy; servers name its reasoning in two ways."""
    plain = all(part["type"] == "text" for part in parts)
    message = {"role": "assistant", "content": "".join(part["text"] for part in parts) if plain else parts}
    if thought := "".join(thoughts):
        message |= {"reasoning_content": thought, "reasoning": thought}
    return message | ({"tool_calls": calls} if calls else {})


def reasoning(message: Mapping[str, Any]) -> str:
    """Return the reasoning of a turn."""
    return message.get("reasoning_content") or message.get("reasoning") or ""


def call(id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a call of a tool."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def json_text(value: Any) -> str:
    """Return a value as JSON."""
    return strict_json.dumps(value).decode()


def arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call. Raises DataError where they are no object."""
    told = call["function"].get("arguments") or "{}"
    try:
        value = strict_json.loads(told)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise DataError(f"the arguments of {call['function']['name']} are no JSON object: {told!r:.200}")
    return value


def check_text(request: Mapping[str, Any], server: str) -> None:
    """Raise DataError where a request, which is to be translated, has more than texts, and pictures for `chat`."""
    known = ("text", "image_url") if server == "chat" else ("text",)
    for number, message in enumerate(request["messages"]):
        parts = message.get("content")
        kinds = [part.get("type") for part in parts if part.get("type") not in known] if isinstance(parts, list) else []
        if kinds:
            raise DataError(
                f"message {number} has a part of type {kinds[0]!r:.60}, and of parts only {', '.join(known)} can be "
                "translated into the server's dialect; take it out, or use a server that speaks this dialect itself "
                "(dialect=)"
            )


def read_request(given: dict[str, Any], lost: Lost) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    dicts("messages", given.get("messages"))
    return given


def write_request(request: dict[str, Any], lost: Lost) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    return request


def read_answer(said: dict[str, Any], lost: Lost) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    dicts("choices", said.get("choices"))
    for choice in said["choices"]:
        dicts("choices.message", [choice.get("message")])
        dicts("tool_calls", choice["message"].get("tool_calls") or [{}])
    return said


def write_answer(answer: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    return answer


def events(answer: Mapping[str, Any], usage: bool) -> Iterator[bytes]:
    """Yield the events of a chat completion: for each choice its message, then its end."""
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
    yield b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """Return one server-sent event, named by its type where it has one."""
    name = f"event: {data['type']}\n".encode() if "type" in data else b""
    return name + b"data: " + strict_json.dumps(data) + b"\n\n"


def error(status: int, text: str) -> dict[str, Any]:
    """Return an error in the API's form."""
    return {"error": {"message": text, "type": "capture_error", "code": None}}
