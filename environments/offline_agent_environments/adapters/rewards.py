"""Rewards of other projects' environments as rewards in [0, 1]."""

from __future__ import annotations

import math

from offline_agent.errors import ConfigError, EnvironmentFault

_CLOSE = 1e-9


class Bounds:
    """The rewards between which an episode counts as lost and as solved.

    Args:
        name: The environment, for messages.
        low: The least reward; None = 0, and less is an error.
        high: The reward from which on the task is solved; None = 1, and more is an error.

    Raises:
        ConfigError: They are not in order.
    """

    def __init__(self, name: str, low: float | None, high: float | None) -> None:
        self._name = name
        self._low, self._high = 0.0 if low is None else float(low), 1.0 if high is None else float(high)
        self._least = -math.inf if low is not None else self._low
        self._most = math.inf if high is not None else self._high
        if not self._low < self._high:
            raise ConfigError(
                f"env.low, env.high: got {self._low:g} and {self._high:g}, allowed: the least, then a greater one"
            )

    @property
    def can_lose(self) -> bool:
        """Whether rewards below 0 are part of an episode, so that one that is given up early would look good."""
        return self._low < 0

    def fault(self, reward: float) -> str | None:
        """Return why a reward cannot be placed between the bounds; None where it can."""
        if self._least - _CLOSE <= reward <= self._most + _CLOSE:
            return None
        return (
            f"{self._name} gave the reward {reward:g}, which is outside of {self._low:g} to {self._high:g}; name the "
            "reward of a lost episode and the one from which on a task is solved: env.low=, env.high="
        )

    def scaled(self, reward: float) -> float:
        """Return the place of a reward between the bounds, in [0, 1].

        Raises:
            EnvironmentFault: It is outside of bounds that were not named.
        """
        if (fault := self.fault(reward)) is not None:
            raise EnvironmentFault(fault)
        place = (reward - self._low) / (self._high - self._low)
        return 1.0 if place > 1 - _CLOSE else max(0.0, place)  # sums of tenths are not exact


class Rewards:
    """The rewards of an episode.

    Args:
        bounds: Where they lie.
        how: `sum` of them, or the `last` one.

    Raises:
        ConfigError: There is no such way.
    """

    def __init__(self, bounds: Bounds, how: str) -> None:
        if how not in ("sum", "last"):
            raise ConfigError(f"env.reward: got {how!r}, allowed: sum, last")
        self.bounds, self._summed = bounds, how == "sum"
        self._total: float | None = None

    def begin(self) -> None:
        """Begin an episode."""
        self._total = None

    def add(self, reward: float | None) -> None:
        """Add the reward of a step; None where it has none."""
        if reward is not None:
            self._total = float(reward) + (self._total or 0.0) * self._summed

    def fault(self) -> str | None:
        """Return why the reward so far cannot be placed between the bounds; None where it can."""
        return None if self._total is None else self.bounds.fault(self._total)

    def scaled(self, over: bool) -> float | None:
        """Return the reward so far, in [0, 1]; None where an episode is over and had none.

        Where rewards can be negative, an episode that is not over earns 0: giving up is never better than going on.

        Args:
            over: The episode is over.

        Raises:
            EnvironmentFault: It is outside of bounds that were not named.
        """
        if not over and (self._total is None or self.bounds.can_lose):
            return 0.0
        return None if self._total is None else self.bounds.scaled(self._total)
