"""DeepSeek V3's syntax: JSON arguments in a code block between marks of its own, as its chat template writes them."""

from __future__ import annotations

import re
from typing import Any

from offline_agent.rendering.parsing import BadJson, Block, decode, quote

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
