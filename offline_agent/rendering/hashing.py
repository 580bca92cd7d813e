"""Hashes of ids, texts, numbers and JSON values for certificates."""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offline_agent.errors import DataError

_MOST_DIGITS = 1 << 20
_digits = [str(number) for number in range(1 << 12)]


def text_hash(text: str) -> str:
    """Return 16 hex digits that identify an action's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def ids_hash(ids: Sequence[int]) -> str:
    """Return 16 hex digits that identify a sequence of ids."""
    return hashlib.sha256(" ".join(map(_text_of(ids), ids)).encode()).hexdigest()[:16]


def _text_of(ids: Sequence[int]) -> Callable[[int], str]:
    """Return a function from id to text: a table look-up where the ids allow it, which is faster than `str`."""
    top = max(ids, default=0)
    if top >= _MOST_DIGITS or min(ids, default=0) < 0:
        return str
    while top >= len(_digits):
        _digits.extend(map(str, range(len(_digits), 2 * len(_digits))))
    return _digits.__getitem__


def floats_hash(values: Any) -> str:
    """Return 16 hex digits that identify numbers in single precision, the format of tables."""
    try:
        numbers = array("f", values)
    except TypeError:
        raise DataError("its log-probs are not a list of numbers") from None
    if sys.byteorder == "big":
        numbers.byteswap()
    return hashlib.sha256(numbers.tobytes()).hexdigest()[:16]


def canonical(value: Any) -> Any:
    """Return a form that is equal for every reader: JSON text parsed, null members removed, 3.0 as 3."""
    if isinstance(value, str):
        if value[:1] in ("{", "["):
            try:
                return canonical(json.loads(value))
            except (ValueError, RecursionError):
                return value
        return value
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
