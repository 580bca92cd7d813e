"""Environments of other projects, by name: `env=gym:ID`, `env=textarena:ID`, `env=mcp:COMMAND`, `env=openenv:URL`.

An adapter is a function `adapt(rest, args) -> class` in a module of its own: it is given what stands after the colon and
the arguments of `env`, and returns a class with the contract of `envs.base`. Its library is imported there alone.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from offline_agent import catalog
from offline_agent.errors import ConfigError, EnvironmentFault, ends_the_run, in_words

_TOLD = 500  # characters of a foreign error
_CLOSE = 1e-9  # of rewards
_CONTRACT = frozenset(("achieved_goal", "demonstrate", "fingerprint", "get_reward", "hindsight", "name", "tasks", "turn_reward"))

def environment_class(name: str, args: Mapping[str, Any] | None = None) -> Any:
    """Return the class that an environment's name stands for: of the catalog, `module:Class`, or adapted.

    Args:
        name: The name that the user wrote.
        args: The arguments of `env`, of which some adapters make the tools. An adapted environment has the scripted expert
            `demonstrate=module:function`, called with (task, messages, rng, noise), where that is given.

    Raises:
        ConfigError: There is no such environment, or its library is not installed.
    """
    kind, colon, rest = name.partition(":")
    if not colon or kind not in catalog.ADAPTERS:
        return catalog.resolve("env", name)
    if not rest:
        raise ConfigError(f"env: got {name!r}; write what to adapt after the colon (docs/environments.md)")
    adapt: Callable[..., Any] = importlib.import_module(catalog.ADAPTERS[kind]).adapt
    given = dict(args or {})
    try:
        made = adapt(rest, given)
        if given.get("demonstrate") is not None:
            expert = catalog.load("env.demonstrate", given["demonstrate"])
            made.demonstrate = classmethod(lambda cls, *asked: expert(*asked))
        return made
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"env: {name} needs the module {error.name!r}, which is not installed: pip install 'offline-agent[{kind}]', "
            "or name an interpreter that has it, env.python=PATH"
        ) from error
    except EnvironmentFault as error:
        raise ConfigError(f"env: {name}: {error}") from error
    except BaseException as error:
        if ends_the_run(error):
            raise
        told = " ".join(in_words(error).replace("*", " ").split())
        raise ConfigError(f"env: {name} cannot be adapted: {told[:_TOLD]}") from error


def seeds(split: str, count: int) -> range:
    """Return the seeds of a split's tasks; no seed is in two splits.

    Args:
        split: `train`, `validation` or `test`.
        count: How many.
    """
    start = {"train": 0, "validation": 1_000_000, "test": 2_000_000}[split]
    return range(start, start + count)


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
                f"env.low, env.high: got {self._low:g} and {self._high:g}, allowed: the least reward, then a greater one"
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


def refused_names(cls: type, names: Iterable[str]) -> set[str]:
    """Return the names of tools that the contract, or a class's own members, have taken."""
    return {name for name in names if name in _CONTRACT or name.startswith("_") or hasattr(cls, name)}
