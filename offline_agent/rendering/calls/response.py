"""Any syntax that the tokenizer's own `parse_response` reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offline_agent.rendering.parsing import Parsed, answer, before_call, from_value, quote


def parse(text: str, parser: Callable[[str], Mapping[str, Any]], separator: str = "\n") -> Parsed:
    """Parse a turn with the tokenizer's own `parse_response`.

    Args:
        text: The turn.
        parser: Returns a message with `content` and `tool_calls`; raises where it cannot read the turn.
        separator: The text between thought and call.
    """
    try:
        message = parser(text)
    except Exception as error:  # the parser is configured by the tokenizer's author and may raise anything
        return Parsed(text, None, "invalid_json", f"The tool call cannot be read: {quote(str(error))}.")
    calls = message.get("tool_calls") or []
    if not calls:
        return answer(text)
    reasoning, content = message.get("reasoning_content"), message.get("content") or ""
    thought = before_call(f"<think>\n{reasoning}\n</think>\n\n{content}" if reasoning else content, separator)
    if len(calls) > 1:
        return Parsed(thought, None, "several_calls", f"Make one tool call per turn, not {len(calls)}.")
    return from_value(thought, calls[0].get("function", calls[0]))
