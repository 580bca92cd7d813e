"""ShareGPT, as LLaMA-Factory reads it: `conversations` of `from` and `value`, calls as `function_call` turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.errors import DataError
from offline_agent.logs import strict_json
from offline_agent.logs.conversation import conversation, told_tools, with_system
from offline_agent.logs.episode import Fields, LoggedEpisode

NAME = "sharegpt"

_ROLES = {
    "system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
    "observation": "tool", "tool": "tool", "function_call": "call",
}  # fmt: skip


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    turns = record.get("conversations")
    if isinstance(turns, list) and turns and isinstance(turns[0], Mapping) and {"from", "value"} <= turns[0].keys():
        return "conversations with from and value"
    return None


def episodes(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    messages: list[dict[str, Any]] = []
    for number, turn in enumerate(record["conversations"]):
        try:
            messages.append(_message(turn))
        except DataError as error:
            raise DataError(f"turn {number}: {error}") from error
    said = conversation(with_system(messages, fields.ignored, record))
    yield LoggedEpisode(name, said, told_tools(False, record), **fields.read(record))


def _message(turn: Any) -> dict[str, Any]:
    source = turn.get("from") if isinstance(turn, Mapping) else None
    role = _ROLES.get(source) if isinstance(source, str) else None
    if role is None:
        raise DataError(f"from: got {source!r:.60}, allowed: {', '.join(_ROLES)}")
    value = turn.get("value")
    if not isinstance(value, str):
        raise DataError(f"value: got {value!r:.60}, wanted text")
    if role != "call":
        return {"role": role, "content": value}
    try:
        calls = strict_json.loads(value)
    except (ValueError, RecursionError) as error:
        raise DataError(f"a function_call whose value is no JSON ({error}): {value[:60]!r}") from error
    calls = calls if isinstance(calls, list) else [calls]
    return {"role": "assistant", "content": "", "tool_calls": calls}
