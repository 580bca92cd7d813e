"""Classes of adapted environments, whose tools are not methods that somebody wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from offline_agent.errors import ConfigError

_CONTRACT = frozenset(
    ("achieved_goal", "demonstrate", "fingerprint", "get_reward", "hindsight", "name", "tasks", "turn_reward")
)


def adapted(base: type, tools: Sequence[Mapping[str, Any]], **members: Any) -> type:
    """Return the class of an adapted environment, whose tools call `_take(name, arguments)` of its base.

    Args:
        base: The adapter's class, `_Name`.
        tools: Schemas of the tools.
        members: Attributes of the class.

    Raises:
        ConfigError: The contract has the name of a tool.
    """
    names = [tool["function"]["name"] for tool in tools]
    if taken := sorted(refused_names(base, names)):
        raise ConfigError(f"env: tools called {', '.join(taken)} cannot be adapted, the contract has these names")
    own = {"_tool_schemas": list(tools), "__module__": base.__module__, **members}
    return type(f"{base.__name__[1:]}Environment", (base,), {**own, **{name: _method(name) for name in names}})


def _method(name: str) -> Callable[..., str]:
    def tool(self: Any, **arguments: Any) -> str:
        told: str = self._take(name, arguments)
        return told

    tool.__name__ = name
    return tool


def refused_names(cls: type, names: Iterable[str]) -> set[str]:
    """Return the names of tools that the contract, or a class's own members, have taken."""
    return {name for name in names if name in _CONTRACT or name.startswith("_") or hasattr(cls, name)}
