"""Environments of other projects, by name: `env=gym:ID`, `env=textarena:ID`, `env=mcp:COMMAND`, `env=openenv:URL`.

An adapter is a function `adapt(rest, args) -> class` in a module of its own: it is given what stands after the colon and
the arguments of `env`, and returns a class with the contract of `envs.base`. Its library is imported there alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from offline_agent import catalog
from offline_agent.errors import ConfigError, EnvironmentFault, ends_the_run, in_words

ADAPTERS = {
    "gym": "offline_agent.envs.adapters.gym",
    "mcp": "offline_agent.envs.adapters.mcp",
    "openenv": "offline_agent.envs.adapters.openenv",
    "textarena": "offline_agent.envs.adapters.textarena",
}
"""Modules by the word before the colon."""


def environment_class(name: str, args: Mapping[str, Any] | None = None) -> Any:
    """Return the class that an environment's name stands for: of the catalog, `module:Class`, or adapted.

    Args:
        name: The name that the user wrote.
        args: The arguments of `env`, of which some adapters make the tools.

    Raises:
        ConfigError: There is no such environment, or its library is not installed.
    """
    kind, colon, rest = name.partition(":")
    if not colon or kind not in ADAPTERS:
        return catalog.resolve("env", name)
    if not rest:
        raise ConfigError(f"env: got {name!r}; write what to adapt after the colon (docs/environments.md)")
    adapt: Callable[..., type] = importlib.import_module(ADAPTERS[kind]).adapt
    try:
        return adapt(rest, dict(args or {}))
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
        raise ConfigError(f"env: {name} cannot be adapted: {in_words(error)}") from error


def seeds(split: str, count: int) -> range:
    """Return the seeds of a split's tasks; no seed is in two splits.

    Args:
        split: `train`, `validation` or `test`.
        count: How many.
    """
    start = {"train": 0, "validation": 1_000_000, "test": 2_000_000}[split]
    return range(start, start + count)


def scaled(total: float, low: float, high: float) -> float:
    """Return a reward as its place between two bounds, in [0, 1]."""
    return min(1.0, max(0.0, (total - low) / (high - low)))


def check_bounds(low: float, high: float) -> None:
    """Raise ConfigError where the bounds of rewards are not in order."""
    if not low < high:
        raise ConfigError(f"env.low, env.high: got {low:g} and {high:g}, allowed: the least reward, then a greater one")
