"""Values of a row's columns: hashes for certificates, and allowed ranges, checked at writing and before training."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from offline_agent.errors import DataError
from offline_agent.store.columns import LOGPS


def text_hash(text: str) -> str:
    """Return 16 hex digits that identify an action's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def ids_hash(ids: Sequence[int]) -> str:
    """Return 16 hex digits that identify a sequence of ids."""
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16]


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
        # a table may keep an object as JSON text, another reader gives it parsed
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
    # Arrow and JSON disagree on 3 and 3.0
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Range = tuple[float, float, str]
"""Least and greatest number, both allowed, and the range in words."""

_SHARE: Range = (0, 1, "numbers from 0 to 1")
_COUNT: Range = (0, math.inf, "whole numbers from 0")
_FINITE: Range = (-math.inf, math.inf, "finite numbers")
_ABOVE_0 = math.ulp(0.0)

OWN: Mapping[str, Range] = {
    "weight": (_ABOVE_0, 1, "numbers above 0 to 1"),
    "confidence": _SHARE,
    "rest_confidence": _SHARE,
    "q_chosen": _SHARE,
    "q_rejected": _SHARE,
    "reward": _SHARE,
    "visits_chosen": _COUNT,
    "visits_rejected": _COUNT,
    "steps": _COUNT,
}
"""Ranges for rows that this program wrote."""

LOOSE: Mapping[str, Range] = {
    "weight": (_ABOVE_0, 1000, "numbers above 0 to 1000"),
    "confidence": _SHARE,
    "rest_confidence": _SHARE,
    "q_chosen": _FINITE,
    "q_rejected": _FINITE,
}
"""Ranges for rows of a user's own files, whose values may have another scale."""

_ROUNDING = 1e-3  # rounding error of a log-probability in half precision


def check_ranges(row: Mapping[str, Any], own: bool = True) -> None:
    """Check the numbers of a row; absent values and None are not checked.

    Args:
        row: Its columns, by known names (`store.columns`).
        own: Whether this program wrote it; else it is a user's.

    Raises:
        DataError: A value is out of its range, a log-probability is above 0, or the rejected side has the higher value;
            the message names the column, its value and the allowed values.
    """
    for column, (low, high, allowed) in (OWN if own else LOOSE).items():
        value = row.get(column)
        if value is None:
            continue
        number = isinstance(value, int if allowed is _COUNT[2] else int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high or not math.isfinite(value):
            raise DataError(f"its {column} is {value!r}, allowed: {allowed}")
    for column in LOGPS:
        values = row.get(column)
        numbers = [x for x in values if x is not None] if isinstance(values, list) else []
        listed = isinstance(values, list) and all(isinstance(x, int | float) for x in numbers)
        if values is not None and not listed:
            raise DataError(f"its log-probs {column} are {values!r:.60}, allowed: a list of numbers, or null")
        # None and NaN are not checked: such log-probabilities are computed again
        if any(x > _ROUNDING for x in numbers):
            raise DataError(f"its {column} go up to {max(numbers):g}, allowed: at most 0, being logarithms")
    _check_order(row)


def _check_order(row: Mapping[str, Any]) -> None:
    high, low = row.get("q_chosen"), row.get("q_rejected")
    if high is None or low is None:
        return
    # both sides of a minimal pair are the same success; the chosen one has fewer steps
    equal = row.get("kind") == "minimal"
    # a pair whose sides were swapped would teach the worse one
    if not (high >= low if equal else high > low):
        raise DataError(
            f"its q_chosen is {high:g} and its q_rejected is {low:g}, allowed: q_chosen "
            f"{'at least' if equal else 'above'} q_rejected; the better side has the higher value"
        )
