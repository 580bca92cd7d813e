"""Classes of adapted environments, whose tools are not methods that somebody wrote; environments around another."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from offline_agent.envs.base import EnvSpec, twin
from offline_agent.errors import ConfigError

W = TypeVar("W", bound="Wrapper")

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
        ConfigError: The contract has the name of a tool, or two tools have one name.
    """
    names = [tool["function"]["name"] for tool in tools]
    if taken := sorted(refused_names(base, names)):
        raise ConfigError(f"env: tools called {', '.join(taken)} cannot be adapted, the contract has these names")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"env: two tools are called {', '.join(twice)}; rename the environment's own")
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


class Wrapper:
    """An environment around another: it has that one's tasks, copies it, opens and closes it.

    Attributes:
        _spec: The description of the environment inside.
        _inner: Its instance.
    """

    _spec: ClassVar[EnvSpec]
    _inner: Any

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        """Yield the tasks of the environment inside."""
        yield from cls._spec.entries(split)

    def __deepcopy__(self: W, memo: dict[int, Any]) -> W:
        other = twin(self)
        other._inner = copy.deepcopy(self._inner, memo)
        return other

    def __enter__(self: W) -> W:
        if hasattr(type(self._inner), "__enter__"):
            self._inner = self._inner.__enter__() or self._inner
        return self

    def __exit__(self, *error: object) -> None:
        if hasattr(type(self._inner), "__exit__"):
            self._inner.__exit__(*error)
