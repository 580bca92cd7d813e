"""Calls with an element for each argument, whose text has no type: Qwen3-Coder and later, GLM 4, ATEM.

The formats are those that the chat templates of Qwen3.5, GLM-4.5 and Muse Glimmer write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from offline_agent.records import ToolCall
from offline_agent.rendering.parsing import BadJson, Block, load_json, quote

_WORDS = {"True": True, "False": False, "None": None}  # as Jinja writes them; JSON has its own


def _read(head: re.Pattern[str], argument: re.Pattern[str], tail: str, close: str, body: str) -> tuple[list[Any], int]:
    named = head.match(body)
    if named is None:
        raise BadJson(f"it must begin with the tool's name, got {quote(body)}.")
    arguments: dict[str, str] = {}
    at = named.end()
    while found := argument.match(body, at):
        if found[1] in arguments:
            raise BadJson(f"it has the argument {quote(found[1])} twice.")
        arguments[found[1]] = found[2]
        at = found.end()
    if not body.startswith(tail or close, at):
        raise BadJson(f"an argument or {tail or close} is wanted where it says {quote(body[at:])}.")
    return [{"name": named[1], "arguments": arguments}], at + len(tail)


def _block(kind: str, marks: tuple[str, str], head: str, argument: str, tail: str, example: str) -> Block:
    # a value ends where another argument, or the call's end, follows: it may hold the closing mark itself
    argument = rf"{argument}\s*(?={argument.partition('(')[0]}|{re.escape(tail or marks[1])}|\Z)"
    read: Callable[[str], Any] = partial(_read, re.compile(head), re.compile(argument, re.DOTALL), tail, marks[1])
    return Block(*marks, kind, f"{marks[0]}{example}{marks[1]}", read)


_TAGS = ("<tool_call>", "</tool_call>")
QWEN = _block(
    "XML", _TAGS, r"\s*<function=([^\n>]+)>\s*", r"<parameter=([^\n>]+)>\n?(.*?)\n?</parameter>", "</function>",
    "\n<function=<tool>>\n<parameter=<argument>>\n<value>\n</parameter>\n</function>\n",
)  # fmt: skip
GLM = _block(
    "XML", _TAGS, r"\s*([^\s<{]+)\s*",
    r"<arg_key>([^<]+)</arg_key>\s*<arg_value>(.*?)</arg_value>", "",
    "<tool>\n<arg_key><argument></arg_key>\n<arg_value><value></arg_value>\n",
)  # fmt: skip
ATEM = _block(
    "XML", ("<atem:function_calls>", "</atem:function_calls>"), r'\s*<atem:invoke name="([^"]+)">\s*',
    r'<atem:parameter name="([^"]+)">(.*?)</atem:parameter>', "</atem:invoke>",
    '\n<atem:invoke name="<tool>">\n<atem:parameter name="<argument>"><value></atem:parameter>\n</atem:invoke>\n',
)  # fmt: skip


def typed(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    """Return a call whose arguments, which are texts, have the types that its tool's schema asks for.

    A text stays one where the schema allows a string and nothing else that it reads as; without a schema it becomes
    the JSON value that it reads as.
    """
    functions = (tool.get("function", tool) for tool in tools)
    schema: Mapping[str, Any] = next((one for one in functions if one.get("name") == call.name), {})
    known = (schema.get("parameters") or {}).get("properties") or {}
    return ToolCall(call.name, {key: _value(text, known.get(key)) for key, text in call.arguments.items()})


def _value(text: str, schema: Any) -> Any:
    try:
        value = _WORDS[text] if text in _WORDS else load_json(text)
    except BadJson:
        return text
    kinds = _kinds(schema)
    return value if not kinds or _kind(value) & kinds or "string" not in kinds else text


def _kinds(schema: Any) -> set[str]:
    """Return the JSON types that a schema names; empty where it leaves them open."""
    if not isinstance(schema, Mapping):
        return set()
    if "enum" in schema:
        return set().union(*(_kind(value) for value in schema["enum"]))
    kinds = schema.get("type", ())
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found |= _kinds(part)
    return found


def _kind(value: Any) -> set[str]:
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    if isinstance(value, int) and not isinstance(value, bool):
        return {"integer", "number"}
    names = {bool: "boolean", str: "string", list: "array", dict: "object", type(None): "null"}
    return {names[type(value)]}


def as_text(value: Any) -> str:
    """Return an argument's value as the text that these syntaxes write."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
