"""Countdown: combine numbers, two at a time, until the target is reached; an exact solver knows every state's value."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from offline_agent.envs.base import Environment, ToolError, twin
from offline_agent.errors import ConfigError
from offline_agent.records import Message, Verdict, call_message
from offline_agent.seeding import derive_seed

Numbers = tuple[int, ...]
"""A state: the numbers that are left, sorted."""
Move = tuple[int, str, int]

SPLITS = {"train": 12_000, "validation": 1_000, "test": 1_000}
_MOST_DRAWS = 10_000  # in a row without a new task: there are no more of this size


class Countdown(Environment):
    """Countdown with one tool. Calls cannot be undone: n numbers allow n - 1 of them.

    The target there is success, 1; else 0. Distance to the target is not rewarded.

    Args:
        n: Numbers of a task, 2 to 5; difficulty grows with it.
        largest: Largest number of a task, 2 to 100.
    """

    name = "countdown"
    system_prompt = "Make the target. Each call replaces two numbers by their result."
    one_thread = False
    max_steps = 8
    _answers_differ = False

    def __init__(self, n: int = 4, largest: int = 20) -> None:
        _check(n, largest)
        self._start: Numbers = ()
        self._left: Numbers = ()
        self._target = 0
        self._last: int | None = None
        self.terminated = False

    @classmethod
    def tasks(cls, split: str, n: int = 4, largest: int = 20) -> Iterator[dict[str, Any]]:
        """Yield tasks as keyword arguments of `reset`, each with a solution; no task is in two splits.

        Numbers are uniform in [1, `largest`]; the target, 10 to 99 (with five numbers 100 to 999), is the result of
        n - 1 random moves, and no fewer moves make it.

        Raises:
            ConfigError: `n` or `largest` is out of range.
        """
        _check(n, largest)
        rng = random.Random(derive_seed(0, "countdown", split, n, largest))
        seen: set[tuple[Numbers, int]] = set()
        fruitless = 0
        most = SPLITS[split] // (10 if n == 5 else 1)  # a solver of five numbers takes milliseconds
        while len(seen) < most and fruitless < _MOST_DRAWS:
            numbers = tuple(sorted(rng.randint(1, largest) for _ in range(n)))
            target = _played(numbers, rng)
            fruitless += 1
            if target not in targets(n) or (numbers, target) in seen or split_of(numbers, target) != split:
                continue
            if not _within(numbers, target, n - 2):
                seen.add((numbers, target))
                fruitless = 0
                yield {"numbers": list(numbers), "target": target}

    def reset(self, numbers: Sequence[int], target: int, **columns: Any) -> str:
        """Start with these numbers.

        Args:
            numbers: The numbers, in any order.
            target: What to make of them.
            **columns: Other columns of a data set. Not used.

        Raises:
            ValueError: There are not 2 to 6 whole numbers above 0: more take the solver days.
        """
        whole = [type(number) is int and number > 0 for number in (*numbers, target)]
        if not 2 <= len(numbers) <= 6 or not all(whole):
            raise ValueError(f"got {list(numbers)!r:.80} and {target!r:.20}, allowed: 2 to 6 whole numbers above 0")
        self._start = self._left = tuple(sorted(numbers))
        self._target, self._last, self.terminated = target, None, False
        return self._shown()

    def combine(self, a: int, op: Literal["+", "-", "*", "/"], b: int) -> str:
        """Replace two of the numbers by the result of a op b, a whole number above 0.

        Args:
            a: One of the numbers.
            op: The operation.
            b: Another of the numbers.
        """
        if self.terminated:
            raise ToolError("the game is over.")
        made = result(a, op, b)
        rest = without(self._left, a, b)
        if rest is None:
            raise ToolError(f"{a} and {b} are not both left; left: {_words(self._left)}.")
        if made is None:
            raise ToolError(f"{a} {op} {b} is no whole number above 0.")
        self._left, self._last = tuple(sorted((*rest, made))), made
        self.terminated = made == self._target or len(self._left) == 1
        return self._shown()

    def get_reward(self) -> Verdict:
        """Return 1 where the target was made, else 0."""
        won = self._last == self._target
        return Verdict(float(won), won, "countdown", self.version, {"left": list(self._left), "target": self._target})

    @property
    def fingerprint(self) -> str:
        """A hash of the numbers that are left, as a multiset, the target, and whether it was made."""
        state = (self._left, self._target, self._last == self._target, self.terminated)
        return hashlib.blake2b(repr(state).encode(), digest_size=8).hexdigest()

    @property
    def achieved_goal(self) -> dict[str, Any] | None:
        """The task, of the same split, whose target is the number made last; None where there is no such task."""
        made = self._last
        if made is None or made not in targets(len(self._start)) or made in self._start:
            return None
        if split_of(self._start, made) != split_of(self._start, self._target):
            return None
        return {"numbers": list(self._start), "target": made}

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the solver's next turn: a move of a shortest solution, drawn evenly.

        With probability `noise`, and where there is no solution, the move is any legal one.
        """
        left = next(
            tuple(int(word) for word in str(message["content"]).partition("left: ")[2].split(" target")[0].split())
            for message in reversed(messages)
            if "left: " in str(message.get("content")) and " target" in str(message["content"])
        )
        legal = moves(left)
        if not legal:
            return {"role": "assistant", "content": "Nothing is left to combine."}
        steps = [shortest(after(left, move), task["target"]) for move in legal]
        known = [step for step in steps if step is not None]
        best = [move for move, step in zip(legal, steps, strict=True) if known and step == min(known)]
        a, op, b = rng.choice(best if best and rng.random() >= noise else legal)
        return call_message("combine", {"a": a, "op": op, "b": b})

    def __deepcopy__(self, memo: dict[int, Any]) -> Countdown:
        return twin(self)  # all of it is immutable

    def _shown(self) -> str:
        return f"left: {_words(self._left)} target {self._target}"


def result(a: int, op: str, b: int) -> int | None:
    """Return a op b; None where it is no whole number above 0."""
    if op == "+":
        return a + b
    if op == "*":
        return a * b
    if op == "-":
        return a - b if a > b else None
    return a // b if b and a % b == 0 else None


def without(numbers: Numbers, a: int, b: int) -> Numbers | None:
    """Return the numbers less `a` and `b`; None where they are not both there."""
    rest = list(numbers)
    for number in (a, b):
        if number not in rest:
            return None
        rest.remove(number)
    return tuple(rest)


@lru_cache(maxsize=1 << 16)
def moves(numbers: Numbers) -> tuple[Move, ...]:
    """Return the legal moves, without those of + and * that differ from another in their order alone."""
    found: list[Move] = []
    for i, a in enumerate(numbers):
        for b in numbers[i + 1 :]:
            tried = ((a, "+", b), (b, "-", a), (a, "*", b), (b, "/", a), (a, "/", b))
            found.extend(move for move in tried if result(*move) is not None)
    return tuple(dict.fromkeys(found))


def after(numbers: Numbers, move: Move) -> Numbers:
    """Return the numbers that a legal move leaves."""
    rest, made = without(numbers, move[0], move[2]), result(*move)
    assert rest is not None and made is not None
    return tuple(sorted((*rest, made)))


def shortest(numbers: Numbers, target: int) -> int | None:
    """Return the fewest further moves that make the target, by exhaustive search; None where none do.

    A state's true value under best play is 1 where this is a number, else 0.
    """
    return reachable(numbers).get(target)


def reachable(numbers: Numbers) -> Mapping[int, int]:
    """Return every number that can be made, with the fewest moves that make it."""
    return _kept(numbers) if len(numbers) < 4 else _reached(numbers)


def _reached(numbers: Numbers) -> dict[int, int]:
    found = dict.fromkeys(numbers, 0)
    for move in moves(numbers):
        for value, steps in reachable(after(numbers, move)).items():
            found[value] = min(steps + 1, found.get(value, len(numbers)))
    return found


_kept = lru_cache(maxsize=1 << 14)(_reached)  # of small states, which many tasks share; larger ones take much memory


def targets(n: int) -> range:
    """Return the targets of tasks with n numbers; nearly all smaller ones of five numbers can be made with fewer."""
    return range(10, 100) if n < 5 else range(100, 1000)


def split_of(numbers: Sequence[int], target: int) -> str:
    """Return the split that a task belongs to, by a hash of it."""
    lot = derive_seed(0, "countdown split", *sorted(numbers), "target", target) % 10
    return "validation" if lot == 0 else "test" if lot == 1 else "train"


def _played(numbers: Numbers, rng: random.Random) -> int:
    while len(numbers) > 1:
        numbers = after(numbers, rng.choice(moves(numbers)))
    return numbers[0]


def _within(numbers: Numbers, target: int, most: int) -> bool:
    """Return whether so many moves or fewer make the target; faster than `shortest` where they are few."""
    if most == 1:
        return target in numbers or any(result(*move) == target for move in moves(numbers))
    return target in numbers or (most > 0 and any(_within(after(numbers, m), target, most - 1) for m in moves(numbers)))


def _words(numbers: Numbers) -> str:
    return " ".join(map(str, numbers))


def _check(n: int, largest: int) -> None:
    allowed = (("env.n", n, 2, 5), ("env.largest", largest, 2, 100))
    faults = [
        f"{key}: got {value!r}, allowed: whole numbers from {low} to {high}"
        for key, value, low, high in allowed
        if type(value) is not int or not low <= value <= high
    ]
    if faults:
        raise ConfigError(faults)
