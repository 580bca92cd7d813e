"""Reasons of one rule, counted together: they differ in their numbers alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Any

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Reasons:
    """Counts of reasons by rule; a number that differs among the reasons of a rule is shown as a range.

    Args:
        kept: From `to_json`.
    """

    def __init__(self, kept: Iterable[tuple[list[str], int, list[str], list[str]]] = ()) -> None:
        self._rules: dict[tuple[str, ...], tuple[int, list[str], list[str]]] = {
            tuple(words): (count, least, most) for words, count, least, most in kept
        }

    def add(self, reason: str, count: int = 1) -> tuple[str, ...]:
        """Count the first line of a reason; return its rule."""
        line = reason.partition("\n")[0]
        words, numbers = tuple(_NUMBER.split(line)), _NUMBER.findall(line)
        known, least, most = self._rules.get(words, (0, numbers, numbers))
        low, high = (
            [pick(pair, key=float) for pair in zip(ends, numbers, strict=True)]
            for pick, ends in ((min, least), (max, most))
        )
        self._rules[words] = known + count, low, high
        return words

    def most_common(self, most: int | None = None) -> list[tuple[tuple[str, ...], str, int]]:
        """Return (rule, its text, count) of the commonest rules, the commonest first."""
        ordered = sorted(self._rules.items(), key=lambda item: -item[1][0])[:most]
        return [(words, _text(words, least, high), count) for words, (count, least, high) in ordered]

    def to_json(self) -> list[Any]:
        """Return its constructor's argument."""
        return [[list(words), *found] for words, found in self._rules.items()]


def _text(words: tuple[str, ...], least: list[str], most: list[str]) -> str:
    numbers = [low if low == high else f"{low}…{high}" for low, high in zip(least, most, strict=True)]
    return "".join(chain.from_iterable(zip_longest(words, numbers, fillvalue="")))
