"""Environments and task datasets of Aviary; imported where `fhaviary` is installed."""

from __future__ import annotations

import random
from typing import Any

from aviary.core import Environment, Message, TaskDataset, Tool, ToolRequestMessage


class Guessing(Environment[None]):
    """Guess a number in three turns; the text is its bound, and the hints are drawn."""

    def __init__(self, goal: int = 3, most: int = 5, extra: bool = False) -> None:
        self.goal, self.most, self.extra, self.left, self.paid = goal, most, extra, 3, 0.0

    @classmethod
    def from_task(cls, task: str) -> Guessing:
        return cls(goal=int(task))

    async def reset(self) -> tuple[list[Message], list[Tool]]:
        self.tools = [Tool.from_function(self.guess), Tool.from_function(self.hint)]
        if self.extra:
            self.tools.append(Tool.from_function(self.pass_on))
        return [Message(content=f"Guess a number from 1 to {self.most}.")], self.tools

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: From 1 to 5.
        """
        self.left -= 1
        self.paid = float(number == self.goal)
        return "right" if self.paid else "wrong"

    async def hint(self) -> str:
        """Hear a number that may be the one."""
        return f"Perhaps {random.randint(1, self.most)}."

    def pass_on(self) -> str:
        """Pass."""
        return "passed"

    async def step(self, action: Message) -> tuple[list[Message], float, bool, bool]:
        self.paid = 0.0
        if not isinstance(action, ToolRequestMessage):
            return [Message(content="Guess.")], 0.0, False, False
        said: Any = await self.exec_tool_calls(action)
        return said, self.paid, bool(self.paid), self.left <= 0


class Counted(Guessing):
    """Counts the environments that are open."""

    open = 0

    async def reset(self) -> tuple[list[Message], list[Tool]]:
        Counted.open += 1
        return await super().reset()

    async def close(self) -> None:
        Counted.open -= 1


class Numbers(TaskDataset[Guessing]):
    """Goals of a split, or all of them."""

    goals = {"train": [1, 2, 3, 4], "val": [5], "exam": [2, 5], "all": [1, 2, 3, 4, 5] * 4}

    def __init__(self, split: str = "all", most: int = 5) -> None:
        self._goals, self._most = self.goals[split], most

    def __len__(self) -> int:
        return len(self._goals)

    def get_new_env_by_idx(self, idx: int) -> Guessing:
        return Guessing(self._goals[idx], self._most)


class Uneven(Numbers):
    """A dataset whose later tasks have a tool more."""

    def get_new_env_by_idx(self, idx: int) -> Guessing:
        return Guessing(self._goals[idx], extra=idx > 0)


class Endless(TaskDataset[Guessing]):
    """A dataset without a length, whose tasks are drawn."""

    def get_new_env(self) -> Guessing:
        return Guessing(random.randint(1, 5))


class Broken(Endless):
    """A dataset whose constructor raises, for one split, what `len` of one without a length raises."""

    def __init__(self, split: str = "all") -> None:
        if split == "val":
            raise TypeError("the file of tasks has another form")


def expert(task: dict[str, Any], messages: list[dict[str, Any]], rng: random.Random, noise: float) -> dict[str, Any]:
    """Guess the goal of a task of `Numbers`."""
    goal = Numbers.goals[task["data"]][task["index"]] if rng.random() >= noise else 5
    call = {"name": "guess", "arguments": {"number": goal}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
