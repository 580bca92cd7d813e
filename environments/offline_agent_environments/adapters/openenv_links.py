"""Links to environments of OpenEnv: an object in this process, or a session of a server."""

from __future__ import annotations

import json
import typing
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from offline_agent import catalog, parameters
from offline_agent.errors import ConfigError, EnvironmentFault, ToolError

_MCP_ACTIONS = ("Action", "CallToolAction", "ListToolsAction")
_BAD_ACTION = "VALIDATION_ERROR"  # a server's code

Seen = tuple[dict[str, Any], float | None, bool]
"""An observation, its reward, and whether the episode is over."""


def is_address(rest: str) -> bool:
    """Return whether a name is the address of a server."""
    return rest.startswith(("http://", "https://"))


def opened(rest: str, options: Mapping[str, Any], action: str | None, timeout: float) -> InProcess | OfServer:
    """Return a link to what the name stands for: `module:Class`, or an address."""
    if is_address(rest):
        return OfServer(rest, timeout)
    return InProcess(catalog.load("env", rest), options, action)


class InProcess:
    """An environment in this process.

    Args:
        made: Its class.
        options: Arguments of the constructor.
        action: `module:Class` of its actions; None = as `step` or its bases say.
    """

    def __init__(self, made: Any, options: Mapping[str, Any], action: str | None) -> None:
        from openenv.core.env_server.interfaces import Environment as OpenEnvironment

        if not (isinstance(made, type) and issubclass(made, OpenEnvironment)):
            raise ConfigError(f"env: {made!r} is no environment of OpenEnv, which has reset, step and state")
        if faults := parameters.argument_faults("env.options", made, options):
            raise ConfigError(faults)
        self._actions = _actions_of(made) if action is None else catalog.load("env.action", action)
        self._env = made(**options)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of an action."""
        if self._actions is None:
            raise ConfigError(
                "env.action: neither `step` nor the bases say what an action is; name env.action=module:Class"
            )
        return dict(self._actions.model_json_schema())

    @property
    def tasks(self) -> dict[str, int] | None:
        """Numbers of tasks by split, where the class lists them."""
        if not callable(getattr(self._env, "num_tasks", None)):
            return None
        named = [one if isinstance(one, str) else _dumped(one)["name"] for one in self._env.list_splits()]
        return {name: int(self._env.num_tasks(name)) for name in named}

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools that it lists; none where it has actions of its own."""
        from openenv.core.env_server.mcp_types import ListToolsAction

        if self._actions is not None and self._actions.__name__ not in _MCP_ACTIONS:
            return []
        return [_tool(_dumped(tool)) for tool in getattr(self._env.step(ListToolsAction()), "tools", ())]

    def reset(self, task: dict[str, Any]) -> Seen:
        """Return observation, reward and whether the episode is over."""
        return _parts(_dumped(self._env.reset(**task)))

    def step(self, action: dict[str, Any]) -> Seen:
        """Return as `reset`; raises ValueError where an action does not fit."""
        from openenv.core.env_server.mcp_types import CallToolAction

        kind = CallToolAction if action.get("type") == "call_tool" else self._actions
        return _parts(_dumped(self._env.step(kind(**action))))

    def close(self) -> None:
        """Close it."""
        if callable(getattr(self._env, "close", None)):
            self._env.close()


class OfServer:
    """An environment of a server; a session of its own.

    Args:
        address: The server's.
        timeout: Seconds that it may take to answer.

    Raises:
        EnvironmentFault: It does not answer.
    """

    tasks = None

    def __init__(self, address: str, timeout: float) -> None:
        from openenv.core import GenericEnvClient

        self._address, self._timeout = address, timeout
        self._client = GenericEnvClient(address, connect_timeout_s=timeout, message_timeout_s=timeout).sync()

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of an action."""
        try:
            with urllib.request.urlopen(f"{self._address.rstrip('/')}/schema", timeout=self._timeout) as answer:
                return dict(json.load(answer)["action"])
        except (OSError, ValueError, KeyError) as error:
            raise EnvironmentFault(f"openenv:{self._address} does not say what its actions are: {error}") from error

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools that it lists; none where it has actions of its own."""
        if self.schema.get("title") not in _MCP_ACTIONS:
            return []
        seen, _, _ = self.step({"type": "list_tools"})
        return [_tool(tool) for tool in seen.get("tools") or ()]

    def reset(self, task: dict[str, Any]) -> Seen:
        """Return as `InProcess.reset`."""
        return self._asked(lambda: self._client.reset(**task))

    def step(self, action: dict[str, Any]) -> Seen:
        """Return as `reset`; raises ToolError where an action does not fit."""
        return self._asked(lambda: self._client.step(action))

    def _asked(self, ask: Callable[[], Any]) -> Seen:
        try:
            answer = ask()
        except Exception as error:
            if _BAD_ACTION in str(error):
                raise ToolError(str(error)) from error
            raise EnvironmentFault(f"openenv:{self._address}: {type(error).__name__}: {error}") from error
        return dict(answer.observation), answer.reward, bool(answer.done)

    def close(self) -> None:
        """End the session."""
        self._client.close()


def _actions_of(made: type) -> Any:
    """Return the class of an environment's actions, from `step`'s parameter or its bases; None where neither says."""
    from openenv.core.env_server.types import Action

    try:
        found = [typing.get_type_hints(made.step).get("action")]  # type: ignore[attr-defined]
    except Exception:  # a name for type checkers alone
        found = []
    found += [each for base in getattr(made, "__orig_bases__", ()) for each in typing.get_args(base)[:1]]
    classes = [each for each in found if isinstance(each, type) and issubclass(each, Action)]
    return next((each for each in classes if each.__name__ not in _MCP_ACTIONS), classes[0] if classes else None)


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    shape = dict(tool.get("input_schema") or {"type": "object", "properties": {}})
    about = tool.get("description") or tool["name"]
    return {"type": "function", "function": {"name": tool["name"], "description": about, "parameters": shape}}


def _dumped(value: Any) -> dict[str, Any]:
    """Return a model, or a dict, as plain values."""
    return dict(value.model_dump(mode="json") if hasattr(value, "model_dump") else value)


def _parts(seen: dict[str, Any]) -> Seen:
    return seen, seen.get("reward"), bool(seen.get("done"))
