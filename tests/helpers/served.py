"""An environment that shows what a bridge may lose, scripts of its episodes, and what they are answered."""

from __future__ import annotations

from typing import Any

SCRIPTS: dict[int, list[tuple[str, dict[str, Any]] | str]] = {
    3: [("add", {"n": 1}), ("add", {"n": 2})],
    4: [("add", {"n": -1}), ("take", {"n": 1}), "I give up.", "Yes."],
    5: [("add", {"n": 200})],
    6: ["Nothing to do.", ("add", {"n": 2}), "That was it."],
}
"""By goal, the turns of a script: calls, and answers without one."""
FAULT = 7
"""The goal of a task that is played with a call that breaks the environment, where the test says so."""


class Desk:
    """Add numbers up to a goal; whoever stops is asked again once."""

    system_prompt = "Add up to the goal."
    max_steps = 8

    @classmethod
    def tasks(cls, split):
        goals = [FAULT] if split == "train" else SCRIPTS
        return ({"task_id": f"goal-{goal}", "goal": goal} for goal in goals)

    def reset(self, goal: int) -> str:
        self._goal, self._total, self._asked, self.terminated = goal, 0, 0, False
        return f"The goal is {goal}."

    async def add(self, n: int) -> str:
        """Add a number.

        Args:
            n: The number, above 0.
        """
        if n < 1:
            raise ValueError(f"{n} is not above 0")
        self._total += n
        self.terminated = self._total >= self._goal
        return f"The total is {self._total}."

    def take(self, n: int) -> str:
        """Take a number away.

        Args:
            n: The number.
        """
        if n == 99:
            raise OSError("the desk is on fire")
        self._total -= n
        return f"The total is {self._total}."

    def _reply(self, text: str) -> str | None:
        self._asked += 1
        return "Are you sure?" if self._asked == 1 else None

    def get_reward(self) -> float | None:
        """None where the total is beyond what can be judged."""
        return None if self._total > 100 else max(0, self._total) / self._goal
