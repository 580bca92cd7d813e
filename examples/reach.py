"""Reach a number by doubling and adding: an environment of one's own, and its verifier, in one small class.

python -m offline_agent.pipelines.build_prefs env=examples.reach:Reach policy=random
"""

from typing import Literal


class Reach:
    system_prompt = "Reach the target from 1 in at most 8 calls. Every call counts."

    @classmethod
    def tasks(cls, split):
        start = {"train": 10, "validation": 60, "test": 90}[split]
        return ({"target": n} for n in range(start, start + 30))

    def reset(self, target: int) -> str:
        self.target, self.value, self.calls, self.terminated = target, 1, 0, False
        return f"The target is {target}. You have 1."

    def double(self) -> str:
        """Multiply the number by two."""
        return self._moved(self.value * 2)

    def add(self, n: Literal[1, 2, 3]) -> str:
        """Add to the number.

        Args:
            n: How much to add.
        """
        return self._moved(self.value + n)

    def _moved(self, value: int) -> str:
        self.value, self.calls = value, self.calls + 1
        self.terminated = value == self.target or self.calls == 8
        return f"You have {value}; {8 - self.calls} calls are left."

    def get_reward(self) -> float:
        return float(self.value == self.target)
