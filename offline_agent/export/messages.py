"""Messages in OpenAI's form: calls with ids and arguments as JSON text, results with the id of their call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from offline_agent.export.format import Unfit
from offline_agent.records import Message


def wire(messages: Sequence[Message], first: int = 0) -> list[dict[str, Any]]:
    """Return messages with ids of calls, counted through the conversation.

    Args:
        messages: Messages of a run; results follow the turn that called, in the order of its calls.
        first: The number of the first call: of the calls before, where these messages continue others.

    Raises:
        Unfit: A result answers no call.
    """
    out: list[dict[str, Any]] = []
    count, open_calls = first, list[str]()
    for message in messages:
        made = {key: value for key, value in message.items() if key != "tool_calls"}
        if message["role"] == "tool":
            if not open_calls:
                raise Unfit("a tool's result answers no call")
            made["tool_call_id"] = open_calls.pop(0)
        else:
            open_calls = []
        if calls := message.get("tool_calls"):
            made["tool_calls"] = []
            for call in calls:
                function = call["function"]
                text = json.dumps(function["arguments"], ensure_ascii=False)
                id = f"call_{count}"
                made["tool_calls"].append(
                    {"id": id, "type": "function", "function": {"name": function["name"], "arguments": text}}
                )
                open_calls.append(id)
                count += 1
        out.append(made)
    return out


def calls_in(messages: Sequence[Message]) -> int:
    """Return the number of calls."""
    return sum(len(message.get("tool_calls") or ()) for message in messages)
