"""Calls as JSON objects: Llama 3's, bare at the end of the turn, and DeepSeek V3's, in a code block between marks."""

from __future__ import annotations

import re
from typing import Any

from offline_agent.rendering.parsing import BadJson, Block, Parsed, answer, before_call, decode, from_value, quote

_HEAD = re.compile(r"\s*<｜tool▁call▁begin｜>(?:function)?<｜tool▁sep｜>([^\n<]+)\n```json\n")
_TAIL = re.compile(r"\s*```<｜tool▁call▁end｜>")


def _read(body: str) -> tuple[list[Any], int]:
    calls, at = [], 0
    while head := _HEAD.match(body, at):
        value, end = decode(body[head.end() :])
        tail = _TAIL.match(body, head.end() + end)
        if tail is None:
            raise BadJson(f"``` and <｜tool▁call▁end｜> must follow, got {quote(body[head.end() + end :])}.")
        calls.append({"name": head[1], "arguments": value})
        at = tail.end()
    if not calls:
        raise BadJson(f"got {quote(body)}.")
    return calls, at


_OPEN, _CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_EXAMPLE = (
    f"{_OPEN}<｜tool▁call▁begin｜>function<｜tool▁sep｜><tool>\n```json\n<JSON object>\n```<｜tool▁call▁end｜>{_CLOSE}"
)
DEEPSEEK = Block(_OPEN, _CLOSE, "JSON", _EXAMPLE, _read)

_BARE = '{"name": "<tool>", "parameters": {…}}'


def parse_bare(text: str, separator: str = "\n") -> Parsed:
    """Parse a turn in the Llama-3 style: a thought, then a JSON object with a `name` that ends the turn."""
    stripped = text.rstrip()
    for match in re.finditer(r'\{\s*"name"\s*:', text):
        try:
            value, end = decode(text[match.start() :])
        except BadJson as error:
            thought = before_call(text[: match.start()], separator)
            return Parsed(thought, None, "invalid_json", f"The tool call is not valid JSON: {error}")
        # a call ends the turn; JSON with text after it is part of an answer
        end += match.start()
        if end >= len(stripped):
            # Llama 3 writes parameters where others write arguments
            if "parameters" in value and "arguments" not in value:
                value = {("arguments" if key == "parameters" else key): item for key, item in value.items()}
            return from_value(before_call(text[: match.start()], separator), value, _BARE)
        if re.match(r'[\s;,]*\{\s*"name"\s*:', text[end:]):
            return Parsed(text, None, "several_calls", "Make one tool call per turn; the turn had more than one.")
        break
    return answer(text)
