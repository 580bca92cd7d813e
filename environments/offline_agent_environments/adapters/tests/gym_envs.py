"""Gymnasium environments with each kind of action that can be adapted; importing the module registers them."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces

GOAL = 3


class Counts(gymnasium.Env[Any, Any]):
    """Counts to three.

    ## Description
    The goal is a total of exactly three.

    ## Action Space
    - 5: Don't add
    - 6: Add one
    - 7: Add two
    """

    action_space: spaces.Space[Any] = spaces.Discrete(3, start=5)
    observation_space: spaces.Space[Any] = spaces.Discrete(100)

    def __init__(self, cost: float = 0.0) -> None:
        self._cost = cost

    def added(self, action: Any) -> int:
        return int(action) - 5

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.total = int(self.np_random.integers(2))
        return self.total, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.total += self.added(action)
        return self.total, float(self.total == GOAL) - self._cost, self.total >= GOAL, False, {}


class Says(Counts):
    """Counts what is said."""

    action_space = spaces.Text(max_length=3)
    observation_space = spaces.Text(max_length=20, charset="0123456789 sofar")

    def added(self, action: Any) -> int:
        return len(action)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return f"{super().reset(seed=seed)[0]} so far", {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total, *rest = super().step(action)
        return (f"{total} so far", *rest)  # type: ignore[return-value]


class Adds(Counts):
    """Adds parts."""

    action_space = spaces.Dict({"left": spaces.Discrete(2), "right": spaces.Discrete(2)})

    def added(self, action: Any) -> int:
        return int(action["left"]) + int(action["right"])


class Sums(Counts):
    """Adds items."""

    action_space = spaces.MultiDiscrete([2, 2])

    def added(self, action: Any) -> int:
        return int(action.sum())


for made in (Counts, Says, Adds, Sums):
    gymnasium.register(f"{made.__name__}-v0", made, max_episode_steps=10, order_enforce=False)
gymnasium.register("CostsMuch-v0", Counts, max_episode_steps=10, kwargs={"cost": 1.0})
