"""Environments of other projects, by name, such as `env=gym:ID`, `env=mcp:COMMAND`, `env=tau2:DOMAIN`.

An adapter is a function `adapt(rest, args) -> class` in a module of its own: it is given what stands after the colon
and the arguments of `env`, and returns a class with the contract of `envs.base`. Its library is imported there alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offline_agent import catalog
from offline_agent.errors import ConfigError, EnvironmentFault, ends_the_run, in_words

_TOLD = 500  # characters of a foreign error


def environment_class(name: str, args: Mapping[str, Any] | None = None) -> Any:
    """Return the class that an environment's name stands for: of the catalog, `module:Class`, or adapted.

    Args:
        name: The name that the user wrote.
        args: The arguments of `env`, of which some adapters make the tools. An adapted environment has the scripted
            expert `demonstrate=module:function`, called with (task, messages, rng, noise), where that is given.

    Raises:
        ConfigError: There is no such environment, or its library is not installed.
    """
    point = catalog.entry_point("env", name)
    if point is None or not catalog.is_adapter(point):
        return catalog.resolve("env", name)
    rest = name.partition(":")[2]
    if not rest:
        raise ConfigError(f"env: got {name!r}; write what to adapt after the colon (docs/environments.md)")
    given = dict(args or {})
    try:
        made = point.load().adapt(rest, given)
        if given.get("demonstrate") is not None:
            expert = catalog.load("env.demonstrate", given["demonstrate"])
            made.demonstrate = classmethod(lambda cls, *asked: expert(*asked))
        return made
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        offered = (point.dist.metadata.get_all("Provides-Extra") or ()) if point.dist is not None else ()
        package = str(error.name).partition(".")[0]
        if point.dist is not None and point.name in offered:
            package = f"'{point.dist.name}[{point.name}]'"
        raise ConfigError(
            f"env: {name} needs the module {error.name!r}, which is not installed: pip install {package}, "
            "or name an interpreter that has it, env.python=PATH"
        ) from error
    except EnvironmentFault as error:
        raise ConfigError(f"env: {name}: {error}") from error
    except BaseException as error:
        if ends_the_run(error):
            raise
        told = " ".join(in_words(error).replace("*", " ").split())
        raise ConfigError(f"env: {name} cannot be adapted: {told[:_TOLD]}") from error
