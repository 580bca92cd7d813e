"""Strict JSON: what Python's parser takes beyond the standard, or takes in silence, is refused.

NaN and numbers beyond a float's range cannot be written as JSON again, lone surrogates cannot be written as UTF-8, and
of a key that comes twice one value would be lost.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

_HUGE = re.compile(r"[eE]\+?[0-9]{3}|[0-9]{200}")  # may be a number beyond a float's range
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\r\n]*")


def loads(text: str) -> Any:
    """Return the JSON value of a text.

    Raises:
        ValueError: It is none.
        RecursionError: It is nested too deeply.
    """
    value, end = _decode(text, _SPACE.match(text).end())  # type: ignore[union-attr]  # it matches everything
    if end != len(text):
        raise ValueError(f"something follows the value, at character {end}: {text[end : end + 20]!r}")
    return value


def dumps(value: Any) -> bytes:
    """Return a JSON value as UTF-8, with integers of any length as they are."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def values(text: str) -> Iterator[Any]:
    """Yield the JSON values that follow one another in a text, with nothing but space between them. Raises as `loads`.
    """
    at = _SPACE.match(text).end()  # type: ignore[union-attr]
    while at < len(text):
        value, at = _decode(text, at)
        yield value


def _decode(text: str, at: int) -> tuple[Any, int]:
    """Return the value that begins at a character, and where the space after it ends."""
    decoder = _CHECKING if _HUGE.search(text) else _USUAL
    value, end = decoder.raw_decode(text, at)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("half of a character (a lone surrogate) in a text") from error
    return value, _SPACE.match(text, end).end()  # type: ignore[union-attr]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"a number beyond the range of floats: {text[:20]}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object with {next(name for name in names if names.count(name) > 1)!r} twice")
    return out


_USUAL = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_unique)
_CHECKING = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_unique, parse_float=_finite)
