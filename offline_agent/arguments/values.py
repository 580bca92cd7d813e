"""Random arguments that match a JSON schema, from descriptions, from a conversation, and from small integers.

Every source has a chance each time: none is trusted alone, because a description may name an example that is no
argument, and a conversation numbers that count something else.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from offline_agent.arguments.foreign import faults, is_plain
from offline_agent.arguments.sources import SeenText, read_description

MAX_DEPTH = 6
DRAWS = 8  # of arguments for a schema with words that a draw may not fit
OPTIONAL = 0.5
SPREAD = 10
NEGATIVE = 0.1  # share of small integers that are below zero
EXAMPLES = 0.5  # chance of the examples of a schema, where it has any


def argument_values(
    schema: Mapping[str, Any], rng: random.Random, seen: SeenText, description: str = ""
) -> dict[str, Any]:
    """Return arguments for a tool: all required ones, and each optional one with probability one half.

    Args:
        schema: The JSON schema of the arguments, an object.
        rng: Random generator.
        seen: Source of words, numbers and earlier texts.
        description: The tool's.
    """
    draw, plain = _Draw(rng, seen, description), is_plain(schema)
    for _ in range(1 if plain else DRAWS):
        value = draw.object({"type": "object", **schema}, 0)
        if plain or not faults(schema, value):
            break
    return value


class _Draw:
    """One draw of arguments; `parameter` and `own` are name and description of the parameter being drawn."""

    def __init__(self, rng: random.Random, seen: SeenText, description: str) -> None:
        self._rng = rng
        self._seen = seen
        self._tool = description
        self._parameter = self._own = ""

    def value(self, schema: Any, depth: int) -> Any:
        rng = self._rng
        if not isinstance(schema, Mapping):
            return self._seen.words(rng)
        schema = _one_way(schema, rng)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return rng.choice(list(schema["enum"]))
        if schema.get("examples") and isinstance(schema["examples"], list) and rng.random() < EXAMPLES:
            return rng.choice(schema["examples"])
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = rng.choice(kind) if kind else None
        if kind is None:
            named = schema.get("properties") or schema.get("required")
            kind = "object" if named else "array" if "items" in schema else "string"
        makers: dict[str, Callable[[Mapping[str, Any], int], Any]] = {
            "integer": self._integer, "number": self._number, "array": self._array, "object": self.object,
            "boolean": lambda *_: rng.random() < 0.5, "null": lambda *_: None,
        }  # fmt: skip
        return makers.get(kind, self._string)(schema, depth)

    def object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        rng, outer = self._rng, (self._parameter, self._own)
        schema = _one_way(schema, rng)
        required = schema.get("required") or ()
        out = {}
        extra = schema.get("additionalProperties")
        described = schema.get("properties") or {}
        for name, entry in {**described, **{name: extra for name in required if name not in described}}.items():
            if name in required or (depth < MAX_DEPTH and rng.random() < OPTIONAL):
                told = entry.get("description") if isinstance(entry, Mapping) else None
                self._parameter, self._own = name, told if isinstance(told, str) else ""
                out[name] = self.value(entry, depth + 1)
        self._parameter, self._own = outer
        if isinstance(extra, Mapping) and not out and depth < MAX_DEPTH:
            out = {self._seen.words(rng): self.value(extra, depth + 1) for _ in range(rng.randint(1, 2))}
        return out

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        if schema.get("prefixItems"):
            return [self.value(entry, depth + 1) for entry in schema["prefixItems"]]
        rng = self._rng
        least = schema.get("minItems", 0)
        most = max(least, min(schema.get("maxItems", 3), least + 3))
        size = least if depth >= MAX_DEPTH else rng.randint(min(max(least, 1), most), most)
        return [self.value(schema.get("items"), depth + 1) for _ in range(size)]

    # -- numbers -----------------------------------------------------------------------------------------------------

    def _integer(self, schema: Mapping[str, Any], depth: int) -> int:
        low, high = _bounds(schema)
        step = schema.get("multipleOf", 1)
        step = int(step) if step and step >= 1 else 1
        if low is None and high is None:
            return int(self._free_number()) // step * step
        if low is None:
            low = (high or 0) - SPREAD * step
        if high is None:
            high = low + SPREAD * step
        first, last = math.ceil(low / step), math.floor(high / step)
        if first * step == schema.get("exclusiveMinimum"):
            first += 1
        if last * step == schema.get("exclusiveMaximum"):
            last -= 1
        return self._rng.randint(first, max(first, last)) * step

    def _number(self, schema: Mapping[str, Any], depth: int) -> float | int:
        low, high = _bounds(schema)
        if low is None and high is None:
            return self._free_number()
        found = self._seen.number(self._rng)
        fits = found is not None and (low is None or found > low) and (high is None or found < high)
        if found is not None and fits and self._rng.random() < 0.5:
            return found
        low = low if low is not None else (high or 0) - SPREAD
        high = high if high is not None else low + SPREAD
        value = round(self._rng.uniform(low, high), 2)
        return value if low < value < high else (low + high) / 2

    def _free_number(self) -> float | int:
        """Return a number without bounds: of a range or a number that is named somewhere, or a small integer."""
        rng, own, tool = self._rng, read_description(self._own), read_description(self._tool)
        span = self._seen.range(rng)
        number = self._seen.number(rng)
        return self._of(
            (14, bool(own.ranges), lambda: rng.randint(*rng.choice(own.ranges))),
            (2, bool(own.numbers), lambda: rng.choice(own.numbers)),
            (2, bool(tool.ranges), lambda: rng.randint(*rng.choice(tool.ranges))),
            (1, bool(tool.numbers), lambda: rng.choice(tool.numbers)),
            (2, span is not None, lambda: rng.randint(*(span or (0, 0)))),
            (3, number is not None, lambda: number),
            (2, True, self._small_integer),
        )

    def _small_integer(self) -> int:
        value = self._rng.randint(0, SPREAD)
        return -value if self._rng.random() < NEGATIVE else value

    # -- texts ---------------------------------------------------------------------------------------------------------

    def _string(self, schema: Mapping[str, Any], depth: int) -> str:
        text = self._text()
        while len(text) < schema.get("minLength", 0):
            text += " " + self._seen.words(self._rng)
        return text[: schema["maxLength"]] if "maxLength" in schema else text

    def _text(self) -> str:
        """Return an item of a list, words of the conversation, an example, or a text that was answered well before."""
        rng, own, tool = self._rng, read_description(self._own), read_description(self._tool)
        example, used = self._seen.example(rng), self._seen.used(rng, self._parameter)
        return str(self._of(
            (4, True, lambda: self._seen.words(rng)),
            (40, bool(self._seen.options), lambda: rng.choice(self._seen.options)),
            (14, bool(own.examples), lambda: rng.choice(own.examples)),
            (2, bool(own.ranges), lambda: rng.randint(*rng.choice(own.ranges))),
            (2, bool(tool.examples), lambda: rng.choice(tool.examples)),
            (2, example is not None, lambda: example),
            (3, used is not None, lambda: used),
        ))  # fmt: skip

    def _of(self, *sources: tuple[int, bool, Callable[[], Any]]) -> Any:
        """Return what one of the sources that have something gives, each with a chance of its weight."""
        there = [(weight, draw) for weight, has, draw in sources if has]
        return self._rng.choices([draw for _, draw in there], [weight for weight, _ in there])[0]()


def _one_way(schema: Mapping[str, Any], rng: random.Random) -> Mapping[str, Any]:
    """Return a schema with all of its `allOf`, and one each of its `anyOf` and `oneOf`, put in."""
    for _ in range(MAX_DEPTH):  # an option may have options
        parts = [*(schema.get("allOf") or ()), *(rng.choice(schema[key]) for key in _OPTIONS if schema.get(key))]
        if not parts:
            break
        schema = {key: value for key, value in schema.items() if key not in ("allOf", *_OPTIONS)}
        for part in (part for part in parts if isinstance(part, Mapping)):
            fields = {**schema.get("properties", {}), **part.get("properties", {})}
            required = [*schema.get("required", ()), *part.get("required", ())]
            schema = {**schema, **part, "properties": fields, "required": required}
    return schema


_OPTIONS = ("anyOf", "oneOf")


def _bounds(schema: Mapping[str, Any]) -> tuple[float | int | None, float | int | None]:
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    return (max(lows) if lows else None), (min(highs) if highs else None)
