"""The shop with tools that compute for a while in plain Python: two of them need two processes and two cores."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.shop import Shop


class SlowShop:
    """The embedded shop, every call of which costs processor time.

    Args:
        seconds: Of the processor, for each call.
    """

    system_prompt = Shop.system_prompt

    def __init__(self, seconds: float = 0.02) -> None:
        self._seconds = seconds
        self._shop = Shop()

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        """Return the shop's tasks."""
        return Shop.tasks(split)

    @classmethod
    def demonstrate(cls, *given: Any, **named: Any) -> Any:
        """Return what the shop's expert does."""
        return Shop.demonstrate(*given, **named)

    @functools.wraps(Shop.reset)
    def reset(self, **task: Any) -> str:
        return self._shop.reset(**task)

    @property
    def terminated(self) -> bool:
        """Whether the episode is over."""
        return self._shop.terminated

    def get_reward(self) -> Any:
        """Return the shop's verdict."""
        return self._shop.get_reward()


def _slow(method: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(method)
    def tool(self: SlowShop, *given: Any, **named: Any) -> str:
        end = time.thread_time() + self._seconds
        while time.thread_time() < end:
            sum(range(500))
        return method(self._shop, *given, **named)

    return tool


for _name in EnvSpec(Shop).tools.names:
    setattr(SlowShop, _name, _slow(getattr(Shop, _name)))
