"""A two-armed bandit: one pull ends the task, and the right arm pays more often. The best policy pulls it always.

python -m offline_agent.pipelines.build_prefs env=examples.bandit:Bandit policy=random search.max_steps=1
"""

import random


class Bandit:
    system_prompt = "Pull one arm of the machine."

    def __init__(self, right: float = 1.0, left: float = 0.0):
        self._pays = {"right": right, "left": left}  # on this share of the machines

    @classmethod
    def tasks(cls, split):
        start = {"train": 0, "validation": 1000, "test": 2000}[split]
        return ({"machine": start + n} for n in range(200))

    def reset(self, machine: int) -> str:
        self._machine, self._arm, self.terminated = machine, None, False
        return f"Machine {machine} has two arms, left and right."

    def left(self) -> str:
        """Pull the left arm."""
        return self._pull("left")

    def right(self) -> str:
        """Pull the right arm."""
        return self._pull("right")

    def _pull(self, arm: str) -> str:
        self._arm, self.terminated = arm, True
        return "It pays." if self.get_reward() else "Nothing."

    def get_reward(self) -> float:
        if self._arm is None:
            return 0.0
        luck = random.Random(f"{self._machine} {self._arm}").random()  # the same pull of a machine always ends alike
        return float(luck < self._pays[self._arm])

    @classmethod
    def demonstrate(cls, task, messages, rng, noise):
        """Pull the right arm; with noise 1 either one, as often as the other."""
        arm = rng.choice(("left", "right")) if rng.random() < noise else "right"
        call = {"type": "function", "function": {"name": arm, "arguments": {}}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
