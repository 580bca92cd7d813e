"""Environments of OpenEnv, one with actions of its own and one with tools; imported where `openenv` is installed."""

from __future__ import annotations

from typing import Any, Literal

from fastmcp import FastMCP
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    """Guess the number."""

    number: int
    how: Literal["loud", "quiet"] = "quiet"


class Told(Observation):
    text: str


class Guessing(Environment[Guess, Told, State]):
    """Guess a number in two turns."""

    def __init__(self, most: int = 3) -> None:
        super().__init__()
        self._most, self._state = most, State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Told:
        self._goal, self._state = (seed or 0) % self._most + 1, State(step_count=0)
        return Told(text=f"Guess a number from 1 to {self._most}.")

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Told:
        self._state.step_count += 1
        right = action.number == self._goal
        over = right or self._state.step_count >= 2
        return Told(text="right" if right else "wrong", done=over, reward=float(right))

    @property
    def state(self) -> State:
        return self._state


class Counter(MCPEnvironment):
    """Count to a goal with a tool."""

    def __init__(self) -> None:
        server, self.total, self._state = FastMCP("counter"), 0, State()

        @server.tool
        def add(n: int) -> str:
            """Add a number."""
            self.total += n
            return f"The total is {self.total}."

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self.total, self.goal = 0, (seed or 0) % 5 + 2
        return Observation(metadata={})

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise ValueError(action)

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        seen = super().step(action, timeout_s, **kwargs)
        if hasattr(seen, "tool_name"):
            seen.done, seen.reward = self.total >= self.goal, float(self.total == self.goal)
        return seen

    @property
    def state(self) -> State:
        return self._state
