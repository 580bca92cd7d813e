"""Chat completions: histories as OpenAI messages, and answers as actions. Text only, no token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from offline_agent.errors import PolicyError
from offline_agent.messages import write
from offline_agent.records import Action, Context, Message
from offline_agent.rendering.parsing import BadJson, Parsed, answer, call_text, from_value, load_json, parse_tagged


def chat_messages(context: Context) -> list[Message]:
    """Return the history in OpenAI's format: calls with ids and JSON text, every call answered by a tool message."""
    out: list[Message] = []
    pending = False
    for message in context.messages():
        if pending and message["role"] != "tool":
            out.append({"role": "tool", "content": ""})
        # a tool message must refer to a call: the reply to a turn without one becomes a user message
        role = "user" if message["role"] == "tool" and not pending else message["role"]
        calls = message.get("tool_calls", ())[:1]
        pending = bool(calls)
        out.append({"role": role, "content": message["content"], **({"tool_calls": calls} if calls else {})})
    return write(out)


def chat_action(choice: Mapping[str, Any]) -> Action:
    """Return the action of one choice of an answer.

    Raises:
        PolicyError: The choice has not the required form.
    """
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise PolicyError(f"the server's choice has no message; it has {', '.join(map(str, choice)) or 'nothing'}")
    content, calls = message.get("content") or "", message.get("tool_calls") or []
    if not isinstance(content, str) or not isinstance(calls, list):
        raise PolicyError("the server's message has content that is no text, or tool_calls that are no list")
    if choice.get("finish_reason") == "length":
        return Action(content, content, None, "no_end", "The turn was cut before it ended. Be shorter.")
    parsed = _calls(content, calls)
    text = content
    if calls:
        text = call_text(parsed.thought, parsed.call) if parsed.call else f"{content}{json.dumps(calls)}"
    return Action(text, parsed.thought, parsed.call, parsed.fault, parsed.detail)


def _calls(content: str, calls: list[Any]) -> Parsed:
    if not calls:  # a server without a tool parser leaves the call in the text
        return parse_tagged(content) if "tool_call>" in content else answer(content)
    if len(calls) > 1:
        return Parsed(content, None, "several_calls", f"Make one tool call per turn, not {len(calls)}.")
    function = calls[0].get("function") if isinstance(calls[0], Mapping) else None
    if not isinstance(function, Mapping):
        return Parsed(content, None, "bad_call", "The tool call names no function.")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = load_json(arguments) if arguments.strip() else {}
        except BadJson as error:
            return Parsed(content, None, "invalid_json", f"The arguments of the call are not valid JSON: {error}")
    return from_value(content, {"name": function.get("name"), "arguments": arguments})
