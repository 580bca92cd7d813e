"""Parsers of a turn's text. Pure Python; no text of a model makes them raise: faults are returned."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from offline_agent.records import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_NESTING = 32
SHOWN = 60
EXAMPLE = '<tool_call>\n{"name": "<tool>", "arguments": {…}}\n</tool_call>'

_SURROGATES = re.compile("[\ud800-\udfff]")
_STRING = re.compile(r'"(?:\\.|[^"\\])*+"?', re.DOTALL)  # the last may not be closed; *+ keeps no way back in memory
_COMPACT = re.compile(r"^(> )([\w.-]+)\(", re.MULTILINE)
_COMPACT_KEY = re.compile(r"([^\s=(),\"']+)=")
_COMPACT_COMMA = re.compile(r", ?(?=[^)])")
_REASONING_ONLY = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The parts of a turn's text.

    Attributes:
        thought: The text before the call, without the line break between them; the whole text where there is no call.
        call: The call, or None for a final answer or a fault.
        fault: See `records.Action.fault`.
        detail: One sentence for the policy; None where `fault` is None.
    """

    thought: str
    call: ToolCall | None = None
    fault: str | None = None
    detail: str | None = None


class BadJson(ValueError):
    """The text of a call is not JSON that later stages accept; the message is for the policy."""


def clean(text: str) -> str:
    """Return `text` with lone surrogates replaced by U+FFFD, so that it can be encoded as UTF-8."""
    return _SURROGATES.sub("\ufffd", text)


def dump(value: Any) -> str:
    """Return JSON as chat templates write it (`tojson`): no ASCII escapes, a space after `,` and `:`."""
    return json.dumps(value, ensure_ascii=False)


def call_text(thought: str, call: ToolCall) -> str:
    """Return a turn in the Qwen style, for policies without a tokenizer."""
    body = f"{OPEN}\n{dump({'name': call.name, 'arguments': dict(call.arguments)})}\n{CLOSE}"
    return f"{thought}\n{body}" if thought else body


def parse_tagged(text: str, separator: str = "\n") -> Parsed:
    """Parse a turn in the Qwen style: a thought, then one JSON call between `<tool_call>` tags, then nothing."""
    start = text.find(OPEN)
    # a closing tag alone is a call that went wrong, and no answer
    if start < 0:
        if CLOSE in text:
            return Parsed(text, None, "bad_call", f"{CLOSE} closes a call that {OPEN} never opened. Write {EXAMPLE}.")
        return answer(text)
    thought = _thought(text[:start], separator)
    body = text[start + len(OPEN) :]
    try:
        value, end = _decode(body)
    except BadJson as error:
        return Parsed(thought, None, "invalid_json", f"The tool call is not valid JSON: {error} Write {EXAMPLE}.")
    rest = body[end:].lstrip()
    if not rest.startswith(CLOSE):
        said = f"got {_quote(rest)}" if rest else "the turn ended"
        return Parsed(thought, None, "invalid_json", f"The tool call's JSON must be followed by {CLOSE}; {said}.")
    rest = rest[len(CLOSE) :].strip()
    if OPEN in rest:
        return Parsed(thought, None, "several_calls", "Make one tool call per turn; the turn had more than one.")
    if rest:
        detail = f"Nothing may follow the tool call: end the turn after {CLOSE}; got {_quote(rest)}."
        return Parsed(thought, None, "bad_call", detail)
    return from_value(thought, value)


def parse_bare(text: str, separator: str = "\n") -> Parsed:
    """Parse a turn in the Llama-3 style: a thought, then a JSON object with a `name` that ends the turn."""
    stripped = text.rstrip()
    for match in re.finditer(r'\{\s*"name"\s*:', text):
        try:
            value, end = _decode(text[match.start() :])
        except BadJson as error:
            thought = _thought(text[: match.start()], separator)
            return Parsed(thought, None, "invalid_json", f"The tool call is not valid JSON: {error}")
        # a call ends the turn; JSON with text after it is part of an answer
        end += match.start()
        if end >= len(stripped):
            # Llama 3 writes parameters where others write arguments
            if "parameters" in value and "arguments" not in value:
                value = {("arguments" if key == "parameters" else key): item for key, item in value.items()}
            return from_value(_thought(text[: match.start()], separator), value)
        if re.match(r'[\s;,]*\{\s*"name"\s*:', text[end:]):
            return Parsed(text, None, "several_calls", "Make one tool call per turn; the turn had more than one.")
        break
    return answer(text)


def parse_compact(text: str, separator: str = "\n") -> Parsed:
    """Parse a turn in the compact style: a thought, then a last line `> name(key=JSON value, …)`."""
    found = _COMPACT.search(text)
    if found is None:
        return answer(text)
    thought, body = _thought(text[: found.start(1)], separator), text[found.end() :].rstrip()
    arguments: dict[str, Any] = {}
    while key := _COMPACT_KEY.match(body):
        if key[1] in arguments:
            return Parsed(thought, None, "invalid_json", f"The tool call has the argument {_quote(key[1])} twice.")
        try:
            arguments[key[1]], end = _decode(body[key.end() :])
        except BadJson as error:
            return Parsed(thought, None, "invalid_json", f"The argument {_quote(key[1])} is not valid JSON: {error}")
        body = body[key.end() + end :]
        if not (comma := _COMPACT_COMMA.match(body)):
            break
        body = body[comma.end() :]
    if body != ")":
        detail = f"A call is a turn's last line, > name(key=value, …); got {_quote(body) or 'its end'} after it began."
        return Parsed(thought, None, "bad_call", detail)
    return from_value(thought, {"name": found[2], "arguments": arguments})


def parse_message(text: str, parser: Callable[[str], Mapping[str, Any]], separator: str = "\n") -> Parsed:
    """Parse a turn with the tokenizer's own `parse_response`.

    Args:
        text: The turn.
        parser: Returns a message with `content` and `tool_calls`; raises where it cannot read the turn.
        separator: The text between thought and call.
    """
    try:
        message = parser(text)
    except Exception as error:  # the parser is configured by the tokenizer's author and may raise anything
        return Parsed(text, None, "invalid_json", f"The tool call cannot be read: {_quote(str(error))}.")
    calls = message.get("tool_calls") or []
    if not calls:
        return answer(text)
    reasoning, content = message.get("reasoning_content"), message.get("content") or ""
    thought = _thought(f"<think>\n{reasoning}\n</think>\n\n{content}" if reasoning else content, separator)
    if len(calls) > 1:
        return Parsed(thought, None, "several_calls", f"Make one tool call per turn, not {len(calls)}.")
    return from_value(thought, calls[0].get("function", calls[0]))


def answer(text: str) -> Parsed:
    """Return a turn without a call: a final answer, or the fault `empty`."""
    if not text.strip():
        return Parsed(text, None, "empty", "The turn was empty. Call a tool, or answer in words.")
    # a model that only thought has not answered yet
    if not _REASONING_ONLY.sub("", text, count=1).strip():
        return Parsed(text, None, "empty", "The turn had reasoning only. Call a tool, or answer in words after it.")
    return Parsed(text)


def from_value(thought: str, value: Any) -> Parsed:
    """Return the call that a JSON value describes, or the fault `bad_call` or `invalid_json`."""
    fault = _shape_fault(value)
    if fault:
        return Parsed(thought, None, "bad_call", f"{fault} Write {EXAMPLE}.")
    try:
        # here and not in the caller: what is stored must be written as JSON by every later stage
        _check_values(value, 0)
    except BadJson as error:
        return Parsed(thought, None, "invalid_json", f"The tool call cannot be used: {error}")
    return Parsed(thought, ToolCall(value["name"], value["arguments"]))


def load_json(text: str) -> Any:
    """Return the value of a whole JSON text.

    Raises:
        BadJson: The text is not strict JSON, has duplicate keys or numbers that are not finite, or is too deep.
    """
    value, end = _decode(text)
    if text[end:].strip():
        raise BadJson(f"text follows the JSON value: {_quote(text[end:].strip())}.")
    return value


def _shape_fault(value: Any) -> str | None:
    if not isinstance(value, Mapping):
        return f'A tool call is a JSON object with "name" and "arguments"; got {_quote(dump_short(value))}.'
    extra = [str(key) for key in value if key not in ("name", "arguments")]
    if "name" not in value or "arguments" not in value:
        missing = [key for key in ("name", "arguments") if key not in value]
        got = f" (got {', '.join(_quote(key) for key in extra)})" if extra else ""
        return f"The tool call lacks {' and '.join(repr(key) for key in missing)}{got}."
    if extra:
        return f'A tool call has "name" and "arguments" only; got {", ".join(_quote(key) for key in extra)} too.'
    if not isinstance(value["name"], str) or not value["name"].strip():
        return f'The tool call\'s "name" must be a non-empty string; got {_quote(dump_short(value["name"]))}.'
    if not isinstance(value["arguments"], Mapping):
        return f'The tool call\'s "arguments" must be a JSON object; got {_quote(dump_short(value["arguments"]))}.'
    return None


def dump_short(value: Any) -> str:
    """Return the beginning of a value's JSON (or of its repr), for messages."""
    try:
        return json.dumps(value)[: SHOWN + 1]
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__


def _decode(body: str) -> tuple[Any, int]:
    """Return the first JSON value of `body` and the position of its end."""
    start = len(body) - len(body.lstrip())
    # cheap first: brackets are rare, and strings have to be taken out to count their nesting
    if body.count("{") + body.count("[") > MAX_NESTING and _nesting(body) > MAX_NESTING:
        raise BadJson(f"it is nested deeper than {MAX_NESTING} levels.")
    try:
        return _DECODER.raw_decode(body, start)
    except json.JSONDecodeError as error:
        at = _quote(body[error.pos : error.pos + 20])
        place = f"at {at}" if error.pos < len(body) else "where the text ends"
        raise BadJson(f"{error.msg} {place}.") from None
    except BadJson:
        raise
    except (ValueError, RecursionError) as error:  # e.g. an integer of thousands of digits
        raise BadJson(f"{_quote(str(error))}.") from None


def _nesting(body: str) -> int:
    """Return the deepest nesting of brackets outside strings."""
    depth = deepest = 0
    for bracket in re.findall(r"[][{}]", _STRING.sub("", body)):
        depth += 1 if bracket in "{[" else -1
        deepest = max(deepest, depth)
    return deepest


def _check_values(value: Any, depth: int) -> None:
    """Raise BadJson for values that later stages cannot write: lone surrogates, non-finite numbers, other types."""
    if depth > MAX_NESTING:
        raise BadJson(f"it is nested deeper than {MAX_NESTING} levels.")
    if isinstance(value, str):
        if _SURROGATES.search(value):
            raise BadJson("a string holds half of a surrogate pair (\\ud800 to \\udfff).")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise BadJson(f"the key {key!r} is not a string.")
            _check_values(key, depth)
            _check_values(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_values(item, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadJson("a number is not finite.")
    elif value is not None and not isinstance(value, (bool, int)):
        raise BadJson(f"a value is a {type(value).__name__}.")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadJson(f"the key {_quote(twice)} is there twice.")
    return out


def _constant(name: str) -> Any:
    raise BadJson(f"{name} is not a JSON number.")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadJson(f"the number {_quote(text)} is too large.")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float)


def _thought(before: str, separator: str) -> str:
    return before[: -len(separator)] if separator and before.endswith(separator) else before


def _quote(text: str) -> str:
    text = clean(text)
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")
