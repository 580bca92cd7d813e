"""BabyAI's levels: which there are, and a level begun from a seed."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
from collections.abc import Sequence
from typing import Any

from offline_agent.errors import ConfigError, EnvironmentFault, did_you_mean

SPLITS = {"train": range(100_000), "validation": range(1_000_000, 1_001_000), "test": range(2_000_000, 2_001_000)}
"""Seeds of a split's tasks."""

_PREFIX = "BabyAI-"


def checked(given: str | Sequence[str]) -> list[str]:
    """Return the names of levels, in full.

    Args:
        given: One name or several, separated by commas or as a list; `BabyAI-` and `-v0` may be left out.

    Raises:
        ConfigError: The package is missing, or there is no such level.
    """
    if importlib.util.find_spec("minigrid") is None:
        raise ConfigError("env=babyai needs the package minigrid: pip install 'offline-agent-environments[babyai]'")
    known, found = _known(), []
    for name in given.split(",") if isinstance(given, str) else given:
        name = name.strip()
        full = next((n for n in (name, f"{_PREFIX}{name}", f"{_PREFIX}{name}-v0", f"{name}-v0") if n in known), None)
        if full is None:
            near = did_you_mean(name, [*known, *(n.removeprefix(_PREFIX).removesuffix("-v0") for n in known)])
            raise ConfigError(f"env.level: got {name!r}, allowed: one of BabyAI's {len(known)} levels.{near}")
        found.append(full)
    return found


def begin(level: str, seed: int) -> Any:
    """Return a level of the package, begun from a seed.

    Raises:
        EnvironmentFault: The level cannot be made from that seed.
    """
    gymnasium = _gymnasium()
    try:
        # the package prints each mission that it rejects
        with contextlib.redirect_stdout(io.StringIO()):
            game = gymnasium.make(level, disable_env_checker=True).unwrapped
            game.reset(seed=seed)
    except Exception as error:  # it raises whatever comes up while it places things
        raise EnvironmentFault(f"babyai: {level} cannot be made from seed {seed}: {error!r}") from error
    return game


def _known() -> list[str]:
    return sorted(name for name in _gymnasium().registry if name.startswith(_PREFIX))


def _gymnasium() -> Any:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    import gymnasium
    import minigrid  # noqa: F401  (registers its levels)

    return gymnasium
