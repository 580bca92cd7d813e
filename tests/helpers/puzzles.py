"""Three puzzles whose arguments stand in descriptions and texts alone: a box with dials, Hanoi, Mastermind."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any


class Dials:
    """Open a box with three dials."""

    @classmethod
    def tasks(cls, split: str) -> Iterable[dict[str, Any]]:
        start = {"train": 0, "validation": 100, "test": 200}[split]
        return ({"seed": seed} for seed in range(start, start + 20))

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.code = [rng.randint(0, 3) for _ in range(3)]
        self.dials, self.terminated = [0, 0, 0], False
        return "Open the box. A dial clicks at its number."

    def turn(self, dial: int, to: int) -> str:
        """Turn a dial.

        Args:
            dial: Which dial, 1-3.
            to: The number, 0-3.
        """
        if not 1 <= dial <= 3 or not 0 <= to <= 3:
            raise ValueError("there is no such dial or number")
        self.dials[dial - 1] = to
        return "It clicks." if to == self.code[dial - 1] else "It turns."

    def open_box(self) -> str:
        """Open the box, once."""
        self.terminated = True
        return "It opens." if self.dials == self.code else "It stays shut."

    def get_reward(self) -> float:
        right = sum(a == b for a, b in zip(self.dials, self.code, strict=True))
        return right / 3 if self.terminated else 0.0


class Hanoi:
    """Move a tower of two disks; pegs are letters."""

    @classmethod
    def tasks(cls, split: str) -> Iterable[dict[str, Any]]:
        numbers = {"train": range(0, 6), "validation": range(6, 12), "test": range(12, 18)}[split]
        return ({"number": number} for number in numbers)

    def reset(self, number: int) -> str:
        rng = random.Random(number)
        start, self.goal = rng.sample("ABC", 2)
        self.pegs: dict[str, list[int]] = {peg: [] for peg in "ABC"}
        self.pegs[start], self.terminated = [2, 1], False
        return f"Move both disks to tower {self.goal}. {self._show()}"

    def act(self, action: str) -> str:
        """Move the topmost disk of one tower to another.

        Args:
            action: The source and the target in brackets. To move a disk from tower A to tower C write [A C].
        """
        source, _, target = action.strip("[] ").partition(" ")
        if source not in self.pegs or target not in self.pegs:
            raise ValueError("write the move as [source target]")
        if not self.pegs[source] or (self.pegs[target] and self.pegs[target][-1] < self.pegs[source][-1]):
            raise ValueError("that disk cannot be moved there")
        self.pegs[target].append(self.pegs[source].pop())
        self.terminated = len(self.pegs[self.goal]) == 2
        return self._show()

    def get_reward(self) -> float:
        return len(self.pegs[self.goal]) / 2

    def _show(self) -> str:
        return "; ".join(f"{peg}: {disks or 'empty'}" for peg, disks in self.pegs.items())


class Mastermind:
    """Guess a code of three letters."""

    @classmethod
    def tasks(cls, split: str) -> Iterable[dict[str, Any]]:
        start = {"train": 0, "validation": 20, "test": 40}[split]
        return ({"seed": seed} for seed in range(start, start + 20))

    def reset(self, seed: int) -> str:
        self.code = "".join(random.Random(seed).choices("RGBY", k=3))
        self.best, self.left, self.terminated = 0, 6, False
        return "Guess the code of three colours. You have six guesses."

    def guess(self, code: str) -> str:
        """Guess the code.

        Args:
            code: Three letters, each one of R, G, B, Y, for example RGB.
        """
        if len(code) != 3 or set(code) - set("RGBY"):
            raise ValueError("a code is three of the letters R, G, B, Y")
        right = sum(a == b for a, b in zip(code, self.code, strict=True))
        self.best, self.left = max(self.best, right), self.left - 1
        self.terminated = right == 3 or not self.left
        return f"{right} right. {self.left} guesses are left."

    def get_reward(self) -> float:
        return 1.0 if self.best == 3 else 0.3 * self.best / 3
