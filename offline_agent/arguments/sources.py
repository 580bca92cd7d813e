"""Sources of random arguments: the words, numbers, ranges and examples of descriptions and of a conversation."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from offline_agent.records import Context

MOST = 2000
"""Most items of one kind that are kept of one text."""
WIDEST = 10_000
"""Widest range of integers that is taken for one."""

_WORD = re.compile(r"[^\s\"'`{}\[\]()<>,;:|=!?]+")
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,15}(?:\.\d{1,6})?|\d{1,15}(?:\.\d{1,6})?")  # the dash of "0-3" is no sign
_RANGES = (
    re.compile(r"(?<![\w.-])(-?\d{1,6})\s*(?:-|–|—|\.{2,3}|…|\bto\b|\bthrough\b)\s*(-?\d{1,6})(?![\w-]|\.\d)"),
    re.compile(r"\bbetween\s+(-?\d{1,6})\s+and\s+(-?\d{1,6})\b", re.IGNORECASE),
    re.compile(r"[\[(]\s*(-?\d{1,6})\s*,\s*(-?\d{1,6})\s*[\])]"),
    re.compile(r"\b(?:up to|at most|no more than|less than|below)()\s+(\d{1,6})\b", re.IGNORECASE),
)
_QUOTED = re.compile(
    r"\"([^\"\n]{1,60})\"|`([^`\n]{1,60})`|“([^”\n]{1,60})”|(?<!\w)'([^'\n]{1,60})'(?!\w)|(\[[^\[\]{}\"\n]{1,40}\])"
)
_NAMED = re.compile(r"(?:\be\.?g\.?,?|\bsuch as|\bfor example:?,?)\s+((?:[^\s;()\"'`]+ ?)+)", re.IGNORECASE)
_LISTED = re.compile(r"\b(?:one of|either|any of|among)\b(?: the \w+)?\s*:?\s*([^.;()\n]{3,200})", re.IGNORECASE)
_LISTS_END = re.compile(r"\b(?:for example|e\.g|such as)\b", re.IGNORECASE)
_BETWEEN = re.compile(r"\s*(?:,|/|\||\bor\b|\band\b)\s*")
_SENTENCE = re.compile(r"\.(?:\s|$)")
_BULLET = re.compile(r"\s*(?:[-*•]|\(?\d{1,3}[.):])\s+(.+)")
_COMMAS = re.compile(r"\s*(?:[,|](?:\s*(?:and|or)\b)?|\bor\b)\s*")
_LONGEST = 8  # words of an option, and half of that of an example without quotes
_SLASHED = re.compile(r"(?<![\w/.:])[A-Za-z]+(?:/[A-Za-z]+)+(?![\w/])")


class Facts(NamedTuple):
    """The items of a text that arguments are drawn from.

    Attributes:
        words: Words, in their order.
        numbers: Numbers; an int where it has no decimal point.
        ranges: Pairs (low, high) of integers, both ends included.
        examples: Quoted and bracketed texts, and the items of lists such as "one of up, down".
    """

    words: Sequence[str]
    numbers: Sequence[float | int]
    ranges: Sequence[tuple[int, int]]
    examples: Sequence[str]


def read(text: str) -> Facts:
    """Return the facts of a text."""
    words = (word.rstrip(".") for word in _WORD.findall(text))
    numbers = [float(found) if "." in found else int(found) for found in _NUMBER.findall(text)]
    examples = [example for example in _examples(text) if example.strip()]
    kinds = ([word for word in words if word], numbers, list(_ranges(text)), examples)
    return Facts(*(kind[:MOST] for kind in kinds))  # type: ignore[arg-type]  # in the order of the fields


@lru_cache(maxsize=4096)
def read_description(text: str) -> Facts:
    """Return the facts of a description; they are kept, because descriptions are read for each call."""
    return read(text)


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    for pattern in _RANGES:
        for low, high in pattern.findall(text):
            first, last = int(low or 0), int(high)
            if first < last <= first + WIDEST:
                yield first, last


def _examples(text: str) -> Iterator[str]:
    for groups in _QUOTED.findall(text):
        yield next(filter(None, groups), "")
    for named in _NAMED.findall(text):
        for item in _BETWEEN.split(_SENTENCE.split(named)[0]):
            words = item.split()
            if len(words) > _LONGEST // 2:  # the sentence goes on
                yield words[0]
                break
            yield " ".join(words)
    for listed in _LISTED.findall(text):
        items = [item.strip(" \"'`") for item in _BETWEEN.split(_LISTS_END.split(listed)[0])]
        if len(items := [item for item in items if item]) > 1:
            yield from (item for item in items if len(item.split()) <= 3)
    for slashed in _SLASHED.findall(text):
        yield from slashed.split("/")


def options(text: str, known: frozenset[str] = frozenset()) -> tuple[list[str], frozenset[str]]:
    """Return the items of a text's lists: bullets, lines below a colon, and what `;`, or commas after a colon, part.

    Args:
        text: The text.
        known: What stood before the colon of earlier lists. Where such a line comes again it alone counts, be it of one
            item: after "Commands: go east; look" that is "Commands: look".

    Returns:
        The items, and what stands before the colon of lists, earlier ones included.
    """
    found: list[str] = []
    again: list[str] = []
    labels = set(known)
    below = False  # a line that ends with a colon
    for line in text.splitlines():
        label, colon, rest = line.partition(": ")
        if colon and label in known:
            again += rest.split(";") if ";" in rest else _COMMAS.split(rest)
        parts = (rest or line).split(";")
        if len(parts) < (2 if colon else 3):
            parts = _COMMAS.split(rest) if colon else []
        if line.count(": ") > 1:
            parts = []  # names with values, such as those of a state
        if bullet := _BULLET.match(line):
            found.append(bullet[1])
        elif len(parts) > 1:
            found += parts
            labels |= {label} if colon and label != "Error" else set()  # what a tool refuses is said in sentences
        elif below:
            found.append(line)
        below = line.rstrip().endswith(":") or (below and bool(line.strip()))
    return _short(again) or _short(found), frozenset(labels)


def _short(items: list[str]) -> list[str]:
    stripped = (item.strip(" \t\"'`.") for item in items)
    return list(dict.fromkeys(item for item in stripped if item and len(item.split()) <= _LONGEST))[:MOST]


class SeenText:
    """The facts of a conversation, linked to those of its parent, so that each text is read once.

    Args:
        text: The text that the context added.
        parent: The conversation before; None at its start.
        used: (parameter, text) for each text of the last call, where it was answered without an error.

    Attributes:
        options: The items of the lists in the last text that has any.
        labels: See `options`.
    """

    __slots__ = ("_counts", "_own", "_parent", "labels", "options")

    def __init__(self, text: str, parent: SeenText | None, used: Sequence[tuple[str, str]] = ()) -> None:
        self._own: tuple[Sequence[Any], ...] = (*read(text), used)
        before = parent._counts if parent is not None else (0,) * len(self._own)
        self._counts: tuple[int, ...] = tuple(n + len(own) for n, own in zip(before, self._own, strict=True))
        self._parent = parent
        listed, labels = options(text, parent.labels if parent is not None else frozenset())
        self.labels: frozenset[str] = labels
        self.options: Sequence[str] = listed or (parent.options if parent is not None else ())

    @classmethod
    def of(cls, context: Context) -> SeenText:
        """Return the facts up to `context`; cached in `context.cache`."""
        missing: list[Context] = []
        node: Context | None = context
        while node is not None and not isinstance(node.cache, SeenText):
            missing.append(node)
            node = node.parent
        seen = node.cache if node is not None else None
        for entry in reversed(missing):
            system = entry.system if entry.parent is None else ""
            seen = entry.cache = cls(f"{system}\n{entry.observation or ''}", seen, tuple(_answered_well(entry)))
        assert seen is not None  # `context` itself is seen or missing
        return seen

    def words(self, rng: random.Random) -> str:
        """Return one to three consecutive words; "x" where there is none."""
        found = self._find(0, rng)
        if found is None:
            return "x"
        words, at = found
        return " ".join(words[at : at + rng.choice((1, 1, 2, 3))])

    def number(self, rng: random.Random) -> float | int | None:
        """Return a number of the conversation; None where there is none."""
        return self._item(1, rng)

    def range(self, rng: random.Random) -> tuple[int, int] | None:
        """Return a range of the conversation; None where there is none."""
        return self._item(2, rng)

    def example(self, rng: random.Random) -> str | None:
        """Return a quoted or listed text of the conversation; None where there is none."""
        return self._item(3, rng)

    def used(self, rng: random.Random, parameter: str) -> str | None:
        """Return a text that a tool answered well, one of this parameter rather than of another; None without any."""
        found = None
        for _ in range(3):
            entry = self._item(4, rng)
            if entry is None:
                return None
            found = str(entry[1])
            if entry[0] == parameter:
                break
        return found

    def _item(self, kind: int, rng: random.Random) -> Any:
        found = self._find(kind, rng)
        return None if found is None else found[0][found[1]]

    def _find(self, kind: int, rng: random.Random) -> tuple[Sequence[Any], int] | None:
        if not self._counts[kind]:
            return None
        node, index = self, rng.randrange(self._counts[kind])
        while node._parent is not None and index < node._parent._counts[kind]:
            node = node._parent
        return node._own[kind], index - (node._parent._counts[kind] if node._parent is not None else 0)


def _answered_well(context: Context) -> Iterator[tuple[str, str]]:
    """Yield (parameter, text) of the call that led to `context`, where a tool answered it without an error."""
    call = context.action.call if context.action is not None else None
    refused = (context.observation or "").startswith("Error")
    if call is None or refused or context.role != "tool" or not isinstance(call.arguments, Mapping):
        return
    for parameter, value in call.arguments.items():
        yield from _texts(parameter, value)


def _texts(parameter: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield parameter, value
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _texts(name, entry)
    elif isinstance(value, Sequence):
        for entry in value:
            yield from _texts(parameter, entry)
