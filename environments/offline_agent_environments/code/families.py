"""Families of small programming problems: each a request, a solution and inputs, with parameters to fill in."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

_SHOWN, _HIDDEN = 2, 8
_SEED = 11


@dataclass(frozen=True, slots=True)
class Family:
    """A family of problems.

    Attributes:
        name: The function's name.
        parameters: Name → values; each combination is a problem.
        request: The request, with `{name}` for parameters.
        solution: A right program, likewise.
        inputs: Kinds of the function's arguments: `n` (a number), `ns` (numbers), `word`, `text`, `pairs` (intervals).
    """

    name: str
    parameters: Mapping[str, Sequence[Any]]
    request: str
    solution: str
    inputs: tuple[str, ...]


FAMILIES = (
    Family(
        "sum_of_multiples", {"a": (3, 4, 5, 7), "b": (6, 8, 9, 11, 13)},
        "the sum of the whole numbers from 1 to n, n included, that can be divided by {a} or by {b}. Write "
        "sum_of_multiples(n).",
        "def sum_of_multiples(n):\n    return sum(i for i in range(1, n + 1) if i % {a} == 0 or i % {b} == 0)\n",
        ("n",),
    ),
    Family(
        "recurrence", {"a": (2, 3, 5), "b": (1, 4), "m": (97, 101, 1000)},
        "term number n (from 0) of the sequence that begins with 1, {b} and goes on with {a} times the last term plus "
        "the one before it, modulo {m}. Write recurrence(n).",
        "def recurrence(n):\n    x, y = 1, {b}\n    for _ in range(n):\n        x, y = y, ({a} * y + x) % {m}\n"
        "    return x\n",
        ("n",),
    ),
    Family(
        "digit_sum", {"base": (2, 3, 5, 7, 8, 12), "k": (1, 2, 3)},
        "the sum of the digits of n >= 0 written in base {base}, times {k}. Write digit_sum(n).",
        "def digit_sum(n):\n    total = 0\n    while n > 0:\n        total += n % {base}\n        n //= {base}\n"
        "    return total * {k}\n",
        ("n",),
    ),
    Family(
        "chosen_squares", {"k": (2, 3, 4, 5), "r": (0, 1)},
        "a list of the squares of those numbers of a list that leave the remainder {r} when divided by {k}, largest "
        "first. Write chosen_squares(numbers).",
        "def chosen_squares(numbers):\n    return sorted((x * x for x in numbers if x % {k} == {r}), reverse=True)\n",
        ("ns",),
    ),
    Family(
        "grouped", {"k": (2, 3, 4, 5), "sep": ("-", " ", "_", "'")},
        "a word with {sep!r} put between groups of {k} letters, counted from the right end; the first group may be "
        "shorter. Write grouped(word).",
        "def grouped(word):\n    groups = []\n    while len(word) > {k}:\n        groups.insert(0, word[-{k}:])\n"
        "        word = word[:-{k}]\n    groups.insert(0, word)\n    return {sep!r}.join(groups)\n",
        ("word",),
    ),
    Family(
        "shifted", {"k": (1, 3, 5, 11), "kept": ("aeiou", "xyz", "abc")},
        "a word of small letters with each letter moved {k} places on in the alphabet, after z from a on; the letters "
        "{kept!r} stay as they are. Write shifted(word).",
        "def shifted(word):\n    out = ''\n    for c in word:\n        if c in {kept!r}:\n            out += c\n"
        "        else:\n            out += chr((ord(c) - 97 + {k}) % 26 + 97)\n    return out\n",
        ("word",),
    ),
    Family(
        "runs", {"k": (1, 2, 3), "kind": ("longest", "shortest")},
        "a list of [letter, length] for each run of equal letters of a word that has at least {k} letters, in order. "
        "Where there is no such run, the list is empty. Return only the {kind} of them, still in order, where several "
        "have that length. Write runs(word).",
        "def runs(word):\n    found = []\n    for c in word:\n        if found and found[-1][0] == c:\n"
        "            found[-1][1] += 1\n        else:\n            found.append([c, 1])\n"
        "    found = [run for run in found if run[1] >= {k}]\n    if not found:\n        return []\n"
        "    lengths = [run[1] for run in found]\n    best = max(lengths) if {kind!r} == 'longest' else min(lengths)\n"
        "    return [run for run in found if run[1] == best]\n",
        ("word",),
    ),
    Family(
        "merged", {"gap": (0, 1, 2, 4)},
        "a list of intervals [first, last] in order, from one in any order, where those that overlap or lie at most "
        "{gap} apart (the next first minus the last) are merged. Write merged(intervals).",
        "def merged(intervals):\n    out = []\n    for first, last in sorted(intervals):\n"
        "        if out and first - out[-1][1] <= {gap}:\n            out[-1][1] = max(out[-1][1], last)\n"
        "        else:\n            out.append([first, last])\n    return out\n",
        ("pairs",),
    ),
    Family(
        "common_words", {"k": (1, 2, 3, 4), "n": (1, 2, 3)},
        "a list of the {n} most frequent words of at least {k} letters in a text, the most frequent first, equally "
        "frequent ones by the alphabet; fewer where there are fewer. Write common_words(text).",
        "def common_words(text):\n    counts = {{}}\n    for word in text.split():\n        if len(word) >= {k}:\n"
        "            counts[word] = counts.get(word, 0) + 1\n"
        "    return sorted(counts, key=lambda word: (-counts[word], word))[:{n}]\n",
        ("text",),
    ),
    Family(
        "window_maximum", {"k": (2, 3, 4, 5)},
        "the largest sum of {k} numbers that stand next to each other in a list; 0 where the list is shorter. Write "
        "window_maximum(numbers).",
        "def window_maximum(numbers):\n    if len(numbers) < {k}:\n        return 0\n"
        "    return max(sum(numbers[i:i + {k}]) for i in range(len(numbers) - {k} + 1))\n",
        ("ns",),
    ),
)  # fmt: skip


@cache
def problems() -> tuple[dict[str, Any], ...]:
    """Return every problem as a task, in an order that mixes the families; the same in every process."""
    found = [problem for family in FAMILIES for problem in _of(family)]
    random.Random(_SEED).shuffle(found)
    return tuple(found)


def _of(family: Family) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*family.parameters.values()):
        filled = dict(zip(family.parameters, values, strict=True))
        task_id = f"{family.name}-{'-'.join(map(str, filled.values()))}"
        solution = family.solution.format(**filled)
        names: dict[str, Any] = {}
        exec(solution, names)  # a text of this file
        rng = random.Random(task_id)
        cases: dict[str, str] = {}
        while len(cases) < _SHOWN + _HIDDEN:
            arguments = [_drawn(kind, rng) for kind in family.inputs]
            call = f"{family.name}({', '.join(map(repr, arguments))})"
            cases[call] = f"assert {call} == {names[family.name](*arguments)!r}"
        tests = list(cases.values())
        yield {
            "task_id": task_id, "request": "A Python function that returns " + family.request.format(**filled),
            "tests": tests[_SHOWN:], "shown": tests[:_SHOWN], "setup": "", "names": [family.name],
            "solution": solution,
        }  # fmt: skip


def _drawn(kind: str, rng: random.Random) -> Any:
    if kind == "n":
        return rng.choice((rng.randrange(12), rng.randrange(200)))
    if kind == "ns":
        return [rng.randrange(-20, 40) for _ in range(rng.randrange(9))]
    if kind == "word":
        letters = rng.choice(("abcdefghijklmnopqrstuvwxyz", "abxz", "eio"))
        return "".join(rng.choice(letters) * rng.choice((1, 1, 2, 3)) for _ in range(rng.randrange(8)))
    if kind == "text":
        words = ("a", "to", "be", "ten", "red", "tree", "blue", "stone")
        return " ".join(rng.choice(words) for _ in range(rng.randrange(12)))
    pairs = [(rng.randrange(30), rng.randrange(6)) for _ in range(rng.randrange(7))]
    return [[first, first + length] for first, length in pairs]
