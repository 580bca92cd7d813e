"""OpenAI's fine-tuning format: chats, and preferences of one turn a side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offline_agent.export.format import PAIRS, SUCCESSES, ExportRow, Format, Part, Unfit
from offline_agent.export.messages import calls_in, wire
from offline_agent.records import Message

_TOOL = ("name", "description", "parameters", "strict")


def chat(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the trajectory up to its last turn of the policy, with which a chat must end."""
    messages = row.messages("messages")
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if not messages:
        raise Unfit("it has no turn of the policy")
    yield {"messages": _chat(messages), **_tools(row)}


def preference(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the pair."""
    prompt = row.messages("prompt")
    sides = [_chat([side], calls_in(prompt)) for side in row.single_turns()]
    yield {
        "input": {"messages": _chat(prompt), **_tools(row)},
        "preferred_output": sides[0],
        "non_preferred_output": sides[1],
    }


def _chat(messages: Sequence[Message], first: int = 0) -> list[dict[str, Any]]:
    out = []
    for message in wire(messages, first):
        if message.get("reasoning_content"):
            raise Unfit("a turn with reasoning_content, which the format has no place for")
        if message["role"] == "tool":
            message.pop("name", None)
        if message.get("tool_calls") and not message.get("content"):
            message["content"] = None
        out.append(message)
    return out


def _tools(row: ExportRow) -> dict[str, Any]:
    tools = [{"type": "function", "function": {key: tool["function"][key] for key in _TOOL if key in tool["function"]}}
             for tool in row.tools]  # fmt: skip
    return {"tools": tools, "parallel_tool_calls": True} if tools else {}


FORMAT = Format(
    about="OpenAI fine-tuning: JSON lines of chats and preferences, as servers with that API take them",
    parts=(Part("sft.jsonl", SUCCESSES, chat), Part("preference.jsonl", PAIRS, preference)),
    load="""\
```bash
curl $BASE_URL/v1/files -F purpose=fine-tune -F file=@sft.jsonl      # or preference.jsonl, method dpo
```""",
    trains="Every assistant message of a chat; the output messages of a preference. The server renders them.",
    lost="Token ids, masks, log-probabilities and certificates; weights and confidence of pairs; pairs with a side of "
    "several turns; reasoning_content; keys of a tool's schema beyond name, description, parameters and strict. What "
    "follows the last turn of the policy is left out. Ids of calls are made here, `call_0` and so on.",
)
