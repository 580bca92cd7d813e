"""A row of two-armed machines that pay at once: an environment that says of each call what it earned by itself.

python -m offline_agent.pipelines.refine_grpo env=examples.machines:Machines rollouts.credit=turn_reward \\
    rollouts.outcome=0
"""

import random


class Machines:
    system_prompt = "Pull one arm of each machine."
    turn_reward: float | None = None  # after each call what it earned; with a tool's error or no call it is taken for 0

    def __init__(self, machines: int = 3, right: float = 1.0, left: float = 0.0):
        self._machines, self._pays = machines, {"right": right, "left": left}  # on this share of the machines

    @classmethod
    def tasks(cls, split):
        start = {"train": 0, "validation": 1000, "test": 2000}[split]
        return ({"row": start + n} for n in range(200))

    def reset(self, row: int) -> str:
        self._row, self._paid, self.turn_reward, self.terminated = row, [], None, False
        return f"Row {row} has {self._machines} machines, each with two arms, left and right."

    def left(self) -> str:
        """Pull the left arm."""
        return self._pull("left")

    def right(self) -> str:
        """Pull the right arm."""
        return self._pull("right")

    def _pull(self, arm: str) -> str:
        luck = random.Random(f"{self._row} {len(self._paid)} {arm}").random()
        self._paid.append(luck < self._pays[arm])
        self.turn_reward = self._paid[-1] / self._machines
        self.terminated = len(self._paid) == self._machines
        return "It pays." if self._paid[-1] else "Nothing."

    def get_reward(self) -> float:
        return sum(self._paid) / self._machines  # 1.0 where all have paid

    @classmethod
    def demonstrate(cls, task, messages, rng, noise):
        """Pull the right arms; with noise 1 either one, as often as the other."""
        arm = rng.choice(("left", "right")) if rng.random() < noise else "right"
        call = {"type": "function", "function": {"name": arm, "arguments": {}}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
