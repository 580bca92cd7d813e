"""Anthropic's messages: conversations, or calls of the Messages API with their responses, in blocks.

The form is that of `anthropics/anthropic-sdk-python`, `src/anthropic/types/` (`message_param.py`,
`tool_use_block_param.py`, `tool_result_block_param.py`, version 0.7x): a turn's blocks are `thinking`, `text`, then
`tool_use`; what tools answered are `tool_result` blocks of the user's next message. `is_error` of a result is passed
over: its text says what happened. Thoughts that only the provider can read are left out, and the episode says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offline_agent.errors import DataError, located
from offline_agent.logs.conversation import conversation, told_tools, with_system
from offline_agent.logs.episode import Fields, LoggedEpisode, at, has_objects, left_out
from offline_agent.messages import bare

NAME = "anthropic"
_MARKS = {"tool_use", "tool_result", "redacted_thinking"}
HIDDEN = "thoughts that only the provider can read"
SILENT = "thoughts after which the model said nothing"


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    messages = _request(record).get("messages")
    if not has_objects(messages, "role"):
        return None
    contents = [content for one in messages or () if isinstance(content := at(one, "content"), list)]
    kinds = {kind for content in contents for block in content if isinstance(kind := at(block, "type"), str)}
    if found := sorted(kinds & _MARKS):
        return f"messages with {', '.join(found)}"
    return "messages, and a response of blocks" if _response(record) is not None else None


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    request, response = _request(record), _response(record)
    given = [*request["messages"], *([] if response is None else [{**response, "role": "assistant"}])]
    hidden: Counter[str] = Counter()
    messages: list[Mapping[str, Any]] = []
    for number, message in enumerate(given):
        with located(f"message {number}"):
            messages += plain(message, hidden)
    said = conversation(with_system(messages, fields.ignore, request, record), fields.ignore)
    cut = at(response, "stop_reason") == "max_tokens"
    tools = told_tools(_loose(given), request, record)
    yield LoggedEpisode(name, said, tools, **fields.read(record), cut=cut, left=left_out(hidden))


def _request(record: Mapping[str, Any]) -> Mapping[str, Any]:
    request = record.get("request")
    return request if isinstance(request, Mapping) else record


def _response(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    response = record.get("response")
    if isinstance(response, Mapping) and has_objects(response.get("content"), "type"):
        return {"content": response["content"], "stop_reason": response.get("stop_reason")}
    return None


def plain(message: Any, hidden: Counter[str]) -> list[Mapping[str, Any]]:
    """Return a message in OpenAI's form: a turn, or the results in it and then what the user says.

    Args:
        message: One of `role` and `content`, a text or blocks.
        hidden: Gets the number of thoughts that cannot be read.

    Raises:
        DataError: Blocks are in an order that the form cannot keep.
    """
    content, role = at(message, "content"), at(message, "role")
    if role not in ("user", "assistant") or not isinstance(content, Sequence) or isinstance(content, str):
        return [message]
    calls: list[dict[str, Any]] = []
    results: list[Mapping[str, Any]] = []
    rest: list[Any] = []
    for block in content:
        kind = at(block, "type")
        if kind == "tool_use" and role == "assistant":
            arguments = bare(block.get("input")) if _loose([message]) else block.get("input")
            calls.append({"id": block.get("id"), "name": block.get("name"), "input": arguments})
        elif kind == "tool_result" and role == "user":
            if rest:
                raise DataError(f"a tool_result follows a part of type {at(rest[-1], 'type')!r:.60}, wanted first")
            result = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": block.get("content") or ""}
            results.append(result)
        elif kind == "redacted_thinking" or (kind == "thinking" and not block.get("thinking")):
            hidden[HIDDEN] += 1
        elif calls:
            raise DataError(f"a part of type {kind!r:.60} follows a call, and would be learnt before it")
        else:
            rest.append(block)
    if content and not calls and all(at(block, "type") == "thinking" for block in rest):
        hidden[SILENT] += bool(rest)
        return results
    return [*results, {**message, "content": rest, **({"tool_calls": calls} if calls else {})}]


def _loose(messages: Sequence[Any]) -> bool:
    """Return whether blocks went through Arrow, which gives all of them the keys of each, with nulls."""
    contents = [content for message in messages if isinstance(content := at(message, "content"), list)]
    return any(at(block, "type") == "text" and ("input" in block or "tool_use_id" in block)
               for content in contents for block in content)  # fmt: skip
