"""Random arguments that match a JSON schema, from words and numbers of a conversation."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from typing import Any

from offline_agent.records import Context

_WORD = re.compile(r"[^\s\"'`{}\[\]()<>,;:|=!?]+")
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,6})?")
MAX_WORDS = 2000
MAX_DEPTH = 6
OPTIONAL = 0.5
SPREAD = 10


class SeenWords:
    """The words and numbers of a conversation, linked to those of its parent, so that each text is read once.

    Args:
        text: The text that the context added.
        parent: The conversation before; None at its start.
    """

    __slots__ = ("_own_numbers", "_own_words", "_parent", "numbers_seen", "words_seen")

    def __init__(self, text: str, parent: SeenWords | None) -> None:
        words = (word.rstrip(".") for word in _WORD.findall(text))
        self._own_words = [word for word in words if word][:MAX_WORDS]
        self._own_numbers = _NUMBER.findall(text)[:MAX_WORDS]
        self._parent = parent
        self.words_seen: int = len(self._own_words) + (parent.words_seen if parent else 0)
        self.numbers_seen: int = len(self._own_numbers) + (parent.numbers_seen if parent else 0)

    @classmethod
    def of(cls, context: Context) -> SeenWords:
        """Return the words and numbers up to `context`; cached in `context.cache`."""
        missing: list[Context] = []
        node: Context | None = context
        while node is not None and not isinstance(node.cache, SeenWords):
            missing.append(node)
            node = node.parent
        seen = node.cache if node is not None else None
        for entry in reversed(missing):
            system = entry.system if entry.parent is None else ""
            seen = entry.cache = cls(f"{system}\n{entry.observation or ''}", seen)
        assert seen is not None  # `context` itself is seen or missing
        return seen

    def words(self, rng: random.Random) -> str:
        """Return one to three consecutive words."""
        if not self.words_seen:
            return "x"
        node, at = self._find("words", rng.randrange(self.words_seen))
        return " ".join(node._own_words[at : at + rng.choice((1, 1, 2, 3))])

    def number(self, rng: random.Random) -> float | int | None:
        """Return a number of the conversation; None where there is none."""
        if not self.numbers_seen:
            return None
        node, at = self._find("numbers", rng.randrange(self.numbers_seen))
        text = node._own_numbers[at]
        return float(text) if "." in text else int(text)

    def _find(self, kind: str, index: int) -> tuple[SeenWords, int]:
        node = self
        while node._parent is not None:
            before = node._parent.words_seen if kind == "words" else node._parent.numbers_seen
            if index >= before:
                return node, index - before
            node = node._parent
        return node, index


def argument_values(schema: Mapping[str, Any], rng: random.Random, seen: SeenWords) -> dict[str, Any]:
    """Return arguments for a tool: all required ones, and each optional one with probability one half.

    Args:
        schema: The JSON schema of the arguments, an object.
        rng: Random generator.
        seen: Source of words and numbers.
    """
    value = _object(schema, rng, seen, 0)
    return value if isinstance(value, dict) else {}


def _value(schema: Any, rng: random.Random, seen: SeenWords, depth: int) -> Any:
    if not isinstance(schema, Mapping):
        return seen.words(rng)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(list(schema["enum"]))
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return _value(rng.choice(list(schema[key])), rng, seen, depth)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = rng.choice(kind) if kind else None
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    make = _MAKERS.get(kind, _string)
    return make(schema, rng, seen, depth)


def _string(schema: Mapping[str, Any], rng: random.Random, seen: SeenWords, depth: int) -> str:
    text = seen.words(rng)
    while len(text) < schema.get("minLength", 0):
        text += " " + seen.words(rng)
    return text[: schema["maxLength"]] if "maxLength" in schema else text


def _integer(schema: Mapping[str, Any], rng: random.Random, seen: SeenWords, depth: int) -> int:
    low, high = _bounds(schema)
    step = schema.get("multipleOf", 1)
    step = int(step) if step and step >= 1 else 1
    if low is None and high is None:
        found = seen.number(rng)
        value = int(found) if found is not None else rng.randint(0, SPREAD)
        return value // step * step
    if low is None:
        low = (high or 0) - SPREAD * step
    if high is None:
        high = low + SPREAD * step
    first, last = math.ceil(low / step), math.floor(high / step)
    if first * step == schema.get("exclusiveMinimum"):
        first += 1
    if last * step == schema.get("exclusiveMaximum"):
        last -= 1
    return rng.randint(first, max(first, last)) * step


def _number(schema: Mapping[str, Any], rng: random.Random, seen: SeenWords, depth: int) -> float | int:
    low, high = _bounds(schema)
    found = seen.number(rng)
    fits = found is not None and (low is None or found > low) and (high is None or found < high)
    if found is not None and fits and rng.random() < 0.5:
        return found
    if low is None and high is None:
        return found if found is not None else rng.randint(0, SPREAD)
    low = low if low is not None else (high or 0) - SPREAD
    high = high if high is not None else low + SPREAD
    value = round(rng.uniform(low, high), 2)
    return value if low < value < high else (low + high) / 2


def _boolean(schema: Mapping[str, Any], rng: random.Random, seen: SeenWords, depth: int) -> bool:
    return rng.random() < 0.5


def _null(schema: Mapping[str, Any], rng: random.Random, seen: SeenWords, depth: int) -> None:
    return None


def _array(schema: Mapping[str, Any], rng: random.Random, seen: SeenWords, depth: int) -> list[Any]:
    least = schema.get("minItems", 0)
    most = max(least, min(schema.get("maxItems", 3), least + 3))
    size = least if depth >= MAX_DEPTH else rng.randint(min(max(least, 1), most), most)
    return [_value(schema.get("items"), rng, seen, depth + 1) for _ in range(size)]


def _object(schema: Mapping[str, Any], rng: random.Random, seen: SeenWords, depth: int) -> dict[str, Any]:
    required = schema.get("required") or ()
    out = {}
    for name, entry in (schema.get("properties") or {}).items():
        if name in required or (depth < MAX_DEPTH and rng.random() < OPTIONAL):
            out[name] = _value(entry, rng, seen, depth + 1)
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping) and not out and depth < MAX_DEPTH:
        out = {seen.words(rng): _value(extra, rng, seen, depth + 1) for _ in range(rng.randint(1, 2))}
    return out


_MAKERS: dict[str, Any] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "null": _null,
    "array": _array,
    "object": _object,
}


def _bounds(schema: Mapping[str, Any]) -> tuple[float | int | None, float | int | None]:
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    return (max(lows) if lows else None), (min(highs) if highs else None)
