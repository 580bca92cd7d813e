"""A whole answer as the stream that the agent asked for.

Servers that parse calls of tools lose token ids in streams, so the answer is asked for whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.logs import strict_json

END = b"data: [DONE]\n\n"
WAITING = b": waiting\n\n"


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
