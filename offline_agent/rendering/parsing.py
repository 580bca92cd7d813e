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
_REASONING = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
_REASONING_ONLY = re.compile(r"\s*<think>.*?(?:</think>\s*|\Z)", re.DOTALL)


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


def json_call(body: str) -> tuple[list[Any], int]:
    """Return the JSON value at the beginning of a call's body, as a list of one, and where it ends."""
    value, end = decode(body)
    return [value], end


@dataclass(frozen=True, slots=True)
class Block:
    """A syntax of calls: between two marks, after the thought, at the end of the turn.

    Attributes:
        open, close: The marks.
        kind: The name of what stands between them, for messages.
        example: A call in this syntax, for messages.
        read: Returns the calls at the beginning of a body, each with `name` and `arguments`, and where they end;
            raises BadJson.
    """

    open: str = OPEN
    close: str = CLOSE
    kind: str = "JSON"
    example: str = EXAMPLE
    read: Callable[[str], tuple[list[Any], int]] = json_call

    def parse(self, text: str, separator: str = "\n") -> Parsed:
        """Parse a turn: a thought, then one call between the marks, then nothing."""
        start = text.find(self.open)
        # a closing mark alone is a call that went wrong, and no answer
        if start < 0:
            if self.close in text:
                detail = f"{self.close} closes a call that {self.open} never opened. Write {self.example}."
                return Parsed(text, None, "bad_call", detail)
            return answer(text)
        thought = before_call(text[:start], separator)
        body = text[start + len(self.open) :]
        try:
            values, end = self.read(body)
        except BadJson as error:
            detail = f"The tool call is not valid {self.kind}: {error} Write {self.example}."
            return Parsed(thought, None, "invalid_json", detail)
        rest = body[end:].lstrip()
        if not rest.startswith(self.close):
            said = f"got {quote(rest)}" if rest else "the turn ended"
            detail = f"The tool call's {self.kind} must be followed by {self.close}; {said}."
            return Parsed(thought, None, "invalid_json", detail)
        rest = rest[len(self.close) :].strip()
        if self.open in rest or len(values) > 1:
            return Parsed(thought, None, "several_calls", "Make one tool call per turn; the turn had more than one.")
        if rest:
            detail = f"Nothing may follow the tool call: end the turn after {self.close}; got {quote(rest)}."
            return Parsed(thought, None, "bad_call", detail)
        return from_value(thought, values[0], self.example)


TAGGED = Block()
parse_tagged = TAGGED.parse


def answer(text: str) -> Parsed:
    """Return a turn without a call: a final answer, or the fault `empty`."""
    if not text.strip():
        return Parsed(text, None, "empty", "The turn was empty. Call a tool, or answer in words.")
    # a model that only thought has not answered yet
    if not _REASONING_ONLY.sub("", text, count=1).strip():
        return Parsed(text, None, "empty", "The turn had reasoning only. Call a tool, or answer in words after it.")
    return Parsed(text)


def from_value(thought: str, value: Any, example: str = EXAMPLE) -> Parsed:
    """Return the call that a JSON value describes, or the fault `bad_call` or `invalid_json`."""
    fault = _shape_fault(value)
    if fault:
        return Parsed(thought, None, "bad_call", f"{fault} Write {example}.")
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
    value, end = decode(text)
    if text[end:].strip():
        raise BadJson(f"text follows the JSON value: {quote(text[end:].strip())}.")
    return value


def _shape_fault(value: Any) -> str | None:
    if not isinstance(value, Mapping):
        return f'A tool call is a JSON object with "name" and "arguments"; got {quote(dump_short(value))}.'
    extra = [str(key) for key in value if key not in ("name", "arguments")]
    if "name" not in value or "arguments" not in value:
        missing = [key for key in ("name", "arguments") if key not in value]
        got = f" (got {', '.join(quote(key) for key in extra)})" if extra else ""
        return f"The tool call lacks {' and '.join(repr(key) for key in missing)}{got}."
    if extra:
        return f'A tool call has "name" and "arguments" only; got {", ".join(quote(key) for key in extra)} too.'
    if not isinstance(value["name"], str) or not value["name"].strip():
        return f'The tool call\'s "name" must be a non-empty string; got {quote(dump_short(value["name"]))}.'
    if not isinstance(value["arguments"], Mapping):
        return f'The tool call\'s "arguments" must be a JSON object; got {quote(dump_short(value["arguments"]))}.'
    return None


def dump_short(value: Any) -> str:
    """Return the beginning of a value's JSON (or of its repr), for messages."""
    try:
        return json.dumps(value)[: SHOWN + 1]
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__


def decode(body: str) -> tuple[Any, int]:
    """Return the first JSON value of `body` and the position of its end."""
    start = len(body) - len(body.lstrip())
    # cheap first: brackets are rare, and strings have to be taken out to count their nesting
    if body.count("{") + body.count("[") > MAX_NESTING and _nesting(body) > MAX_NESTING:
        raise BadJson(f"it is nested deeper than {MAX_NESTING} levels.")
    try:
        return _DECODER.raw_decode(body, start)
    except json.JSONDecodeError as error:
        at = quote(body[error.pos : error.pos + 20])
        place = f"at {at}" if error.pos < len(body) else "where the text ends"
        raise BadJson(f"{error.msg} {place}.") from None
    except BadJson:
        raise
    except (ValueError, RecursionError) as error:  # e.g. an integer of thousands of digits
        raise BadJson(f"{quote(str(error))}.") from None


def _nesting(body: str) -> int:
    """Return the deepest nesting of brackets outside strings."""
    depth = deepest = 0
    for bracket in re.findall(r"[][{}]", _STRING.sub("", body)):
        depth += 1 if bracket in "{[" else -1
        deepest = max(deepest, depth)
    return deepest


def _check_values(value: Any, depth: int) -> None:
    """Raise BadJson for values that later stages cannot write: lone surrogates, non-finite numbers."""
    if depth > MAX_NESTING:
        raise BadJson(f"it is nested deeper than {MAX_NESTING} levels.")
    if isinstance(value, str):
        if _SURROGATES.search(value):
            raise BadJson("a string holds half of a surrogate pair (\\ud800 to \\udfff).")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_values(key, depth)
            _check_values(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_values(item, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise BadJson("a number is not finite.")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadJson(f"the key {quote(twice)} is there twice.")
    return out


def _constant(name: str) -> Any:
    raise BadJson(f"{name} is not a JSON number.")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadJson(f"the number {quote(text)} is too large.")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float)


def thinking(reason: str, words: str) -> str:
    """Return reasoning, between <think> tags where there is any, and the words after it."""
    return f"<think>\n{reason}\n</think>\n\n{words}" if reason else words


def without_reason(thought: str) -> tuple[str, str]:
    """Return the reasoning between a thought's <think> tags, "" for none, and the words after it."""
    found = _REASONING.match(thought)
    return (found[1].strip("\n"), thought[found.end() :]) if found else ("", thought)


def before_call(before: str, separator: str) -> str:
    """Return a thought without the text that stands between it and its call."""
    return before[: -len(separator)] if separator and before.endswith(separator) else before


def quote(text: str) -> str:
    """Return the beginning of a text in quotes, for messages."""
    text = clean(text)
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")
