"""Calls whose arguments are literals of a programming language: LFM2's Python calls, Gemma 4's objects.

The formats are those that the chat templates of LFM2, LFM2.5 and Gemma 4 write. Jinja mixes Python's words with JSON's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from offline_agent.rendering.parsing import MAX_NESTING, BadJson, Block, Parsed, load_json, quote, thinking

ReadString = Callable[[str, int], "tuple[str, int] | None"]
"""Maps a text and a place to the string that begins there and the place after it; None where none begins."""

_WORDS = {"null": None, "None": None, "true": True, "True": True, "false": False, "False": False}
_ATOM = re.compile(r"[A-Za-z]+|-?\d[\w.+-]*")
_KEY = re.compile(r"\s*([^\s=:(){}\[\],\"'][^=:(){}\[\],\"']*)")
_NAME = re.compile(r"\s*([^\s(){}\[\],\"']+)\s*")
_SPACE = re.compile(r"\s*")
_QUOTED = re.compile(r"'((?:\\.|[^'\\])*+)'|\"((?:\\.|[^\"\\])*+)\"", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5}|U0010[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
# without escapes a string ends where another argument, or the call's end, follows
_BARE = re.compile(r"'(.*?)'(?=\)(?:\]|, )|\)\s*\Z|, [^\s=(),\"']+=)", re.DOTALL)
_CHANNEL = re.compile(r"\s*<\|channel>thought\n(.*?)\n?<channel\|>\s*", re.DOTALL)
_GEMMA = re.compile(r'<\|"\|>(.*?)<\|"\|>', re.DOTALL)


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _LETTERS.get(code, code)


def _escaped(text: str, at: int) -> tuple[str, int] | None:
    found = _QUOTED.match(text, at)
    if found is None:
        return None
    if found[2] is not None:
        # JSON first: it joins a pair of surrogates to one character, the escapes below would leave both alone
        try:
            return json.loads(found[0], strict=False), found.end()
        except json.JSONDecodeError:  # Python's own escapes
            pass
    return _ESCAPE.sub(_unescape, found[1] if found[2] is None else found[2]), found.end()


def _plain(text: str, at: int) -> tuple[str, int] | None:
    found = _BARE.match(text, at)
    return (found[1], found.end()) if found else _escaped(text, at)


def _marked(text: str, at: int) -> tuple[str, int] | None:
    found = _GEMMA.match(text, at)
    return (found[1], found.end()) if found else _escaped(text, at)


def _skip(text: str, at: int, mark: str = "") -> int:
    """Return the place after blanks and, where it is there, a mark."""
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    return at + len(mark) if text.startswith(mark, at) else at


def _members(
    text: str, at: int, close: str, equals: str, string: ReadString, inner: ReadString, depth: int
) -> tuple[dict[str, Any], int]:
    """Return the members of an object, or the arguments of a call, from after its opening mark to its closing one."""
    out: dict[str, Any] = {}
    at = _skip(text, at)
    while not text.startswith(close, at):
        key, at = inner(text, at) or _match(_KEY, text, at, "a name")
        after = _skip(text, at, equals)
        # `_skip` passes the mark where it stands, so the text before `after` ends with it, or it is missing
        if not text[:after].endswith(equals):
            raise BadJson(f"{equals} must follow {quote(key)}.")
        # a dict would keep the last one in silence, and the policy may have meant the first
        if key in out:
            raise BadJson(f"it has {quote(key)} twice.")
        out[key], at = _value(text, _skip(text, after), string, inner, depth)
        at = _next(text, at, close)
    return out, at + len(close)


def _next(text: str, at: int, close: str) -> int:
    after = _skip(text, at, ",")
    if not text[:after].endswith(",") and not text.startswith(close, after):
        raise BadJson(f"a comma or {close} is wanted where it says {quote(text[after:])}.")
    return _skip(text, after)


def _match(pattern: re.Pattern[str], text: str, at: int, what: str) -> tuple[str, int]:
    found = pattern.match(text, at)
    if found is None:
        raise BadJson(f"{what} is wanted where it says {quote(text[at:])}.")
    return found[1], found.end()


def _value(text: str, at: int, string: ReadString, inner: ReadString, depth: int) -> tuple[Any, int]:
    # deeper texts would end in a RecursionError, here or where the value is written later
    if depth > MAX_NESTING:
        raise BadJson(f"it is nested deeper than {MAX_NESTING} levels.")
    # in a list or an object `inner` reads strings: there LFM2 escapes them, as arguments of its own it does not
    if found := string(text, at):
        return found
    if text.startswith("{", at):
        return _members(text, at + 1, "}", ":", inner, inner, depth + 1)
    if text.startswith("[", at):
        items, at = [], _skip(text, at + 1)
        while not text.startswith("]", at):
            item, at = _value(text, at, inner, inner, depth + 1)
            items.append(item)
            at = _next(text, at, "]")
        return items, at + 1
    atom = _ATOM.match(text, at)
    if atom is None:
        raise BadJson(f"a value is wanted where it says {quote(text[at:])}.")
    return (_WORDS[atom[0]] if atom[0] in _WORDS else load_json(atom[0])), atom.end()


def _python(string: ReadString, body: str) -> tuple[list[Any], int]:
    at = _skip(body, 0, "[")
    calls = []
    while not body.startswith("]", at):
        name, at = _match(_NAME, body, at, "a tool's name")
        if not body.startswith("(", at):
            raise BadJson(f"( must follow {quote(name)}.")
        arguments, at = _members(body, at + 1, ")", "=", string, _escaped, 0)
        calls.append({"name": name, "arguments": arguments})
        at = _next(body, at, "]")
    if not calls:
        raise BadJson("there is no call between the brackets.")
    return calls, at + 1


def _object(body: str) -> tuple[list[Any], int]:
    name, at = _match(re.compile(r"\s*call:([^\s{]+)\s*\{"), body, 0, "call:<tool>{")
    arguments, at = _members(body, at, "}", ":", _marked, _marked, 0)
    return [{"name": name, "arguments": arguments}], at


_MARKS = ("<|tool_call_start|>", "<|tool_call_end|>")
_SAID = f"{_MARKS[0]}[<tool>(<argument>='<text>', <other>=<number>)]{_MARKS[1]}"
PYTHON = Block(*_MARKS, "Python", _SAID, partial(_python, _escaped))
UNESCAPED = Block(*_MARKS, "Python", _SAID, partial(_python, _plain))
_GEMMA_BLOCK = Block(
    "<|tool_call>", "<tool_call|>", "object",
    '<|tool_call>call:<tool>{<argument>:<|"|><text><|"|>,<other>:<number>}<tool_call|>', _object,
)  # fmt: skip


def gemma(text: str, separator: str = "") -> Parsed:
    """Parse a turn of Gemma 4. Reasoning is returned between <think> tags."""
    reason = _CHANNEL.match(text)
    if reason is None:
        return _GEMMA_BLOCK.parse(text, separator)
    return _GEMMA_BLOCK.parse(thinking(reason[1], text[reason.end() :]), separator)
