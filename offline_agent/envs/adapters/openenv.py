"""Environments of OpenEnv: `env=openenv:module:Class` in this process, `env=openenv:URL` of a server.

Where an environment lists tools they are offered, else there is one tool, `act`, with the fields of its actions. A task
is what `reset` takes, such as a seed, or a split and an index.
"""

from __future__ import annotations

import json
import typing
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from offline_agent import catalog
from offline_agent.envs.adapters import refused_names, seeds
from offline_agent.envs.adapters.rewards import Bounds, Rewards
from offline_agent.envs.base import Environment
from offline_agent.errors import ConfigError, EnvironmentFault, ToolError

_ACT = "act"
_OWN = ("done", "reward", "metadata")  # fields of each observation and action that are not shown
_MCP_ACTIONS = ("Action", "CallToolAction", "ListToolsAction")
_BAD_ACTION = "VALIDATION_ERROR"  # a server's code


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of an OpenEnv environment; see `adapters.environment_class`."""
    import openenv.core  # noqa: F401  (is it installed?)

    timeout = float(args.get("timeout", 60.0))
    link = _opened(rest, args.get("options") or {}, args.get("action"), timeout)
    try:
        link.reset({"seed": 0})
        tools = link.tools()
        count = link.tasks if args.get("tasks") is None else None
    finally:
        link.close()
    own = not tools
    tools = tools or [_act(link.schema)]
    if taken := refused_names(_OpenEnv, [tool["function"]["name"] for tool in tools]):
        raise ConfigError(
            f"env: tools called {', '.join(sorted(taken))} cannot be adapted, the contract has these names"
        )
    members: dict[str, Any] = {
        "name": rest, "_rest": rest, "_tool_schemas": tools, "replay_only": _is_address(rest), "_counted": count,
        "__module__": __name__,
    }  # fmt: skip
    names = [tool["function"]["name"] for tool in tools]
    return type("OpenEnvEnvironment", (_OpenEnv,), {**members, **{name: _method(name, own) for name in names}})


class _OpenEnv(Environment):
    """One environment of OpenEnv; `adapt` makes the classes.

    Args:
        options: Arguments of the class's constructor.
        action: `module:Class` of its actions, where neither `step` nor its bases say so.
        observe: `module:function` that makes text of an observation, a dict.
        prompt: The system prompt.
        reward: `sum` of the rewards of an episode, or the `last` one.
        low: The reward of a lost episode; None = 0, and less is an error.
        high: The reward from which on the task is solved; None = 1, and more is an error.
        tasks: Tasks of each split: seeds. None = those that the class lists, else 1000 seeds.
        timeout: Seconds that a server may take to answer.
        demonstrate: See `adapters.environment_class`.
    """

    _rest: ClassVar[str]
    _tool_schemas: ClassVar[list[dict[str, Any]]]
    _counted: ClassVar[dict[str, int] | None]

    def __init__(
        self,
        options: dict[str, Any] | None = None,
        action: str | None = None,
        observe: str | None = None,
        prompt: str | None = None,
        reward: str = "sum",
        low: float | None = None,
        high: float | None = None,
        tasks: int | None = None,
        timeout: float = 60.0,
        demonstrate: str | None = None,
    ) -> None:
        self._rewards = Rewards(Bounds(self._rest, low, high), reward)
        self._observe = None if observe is None else catalog.load("env.observe", observe)
        self._link = _opened(self._rest, options or {}, action, timeout)
        self.terminated = False
        if prompt is not None:
            self.system_prompt = prompt  # type: ignore[misc]

    @classmethod
    def tasks(cls, split: str, tasks: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the tasks that the class lists for a split, else seeds."""
        if cls._counted is not None:
            for index in range(cls._counted.get(split, 0)):
                yield {"split": split, "index": index}
        else:
            for seed in seeds(split, 1000 if tasks is None else tasks):
                yield {"seed": seed}

    def reset(self, **task: Any) -> str:
        """Start with what the task says."""
        self.terminated = False
        self._rewards.begin()
        seen, _, self.terminated = self._link.reset({name: value for name, value in task.items() if name != "task_id"})
        return self._text(seen)

    def get_reward(self) -> float | None:
        """Return the reward so far, between `low` and `high`; see `Rewards.scaled`."""
        return self._rewards.scaled(self.terminated)

    def _take(self, action: dict[str, Any]) -> str:
        seen, reward, self.terminated = self._link.step(action)
        self._rewards.add(reward)
        if seen.get("error"):  # of a tool
            raise ToolError(str(seen["error"].get("message") if isinstance(seen["error"], dict) else seen["error"]))
        return self._text(seen)

    def _text(self, seen: dict[str, Any]) -> str:
        return _shown(seen) if self._observe is None else str(self._observe(seen))

    def __enter__(self) -> _OpenEnv:
        return self

    def __exit__(self, *_: Any) -> None:
        self._link.close()


def _method(name: str, own: bool) -> Callable[..., str]:
    def tool(self: _OpenEnv, **arguments: Any) -> str:
        return self._take(arguments if own else {"type": "call_tool", "tool_name": name, "arguments": arguments})

    tool.__name__ = name
    return tool


def _shown(seen: Mapping[str, Any]) -> str:
    """Return an observation as text: its result or its only field where that is text, else JSON."""
    shown = {name: value for name, value in seen.items() if name not in _OWN and value is not None}
    if "tool_name" in shown:
        result = shown.get("result")
        if isinstance(result, Mapping):  # of an MCP tool
            texts = [
                part["text"] for part in result.get("content") or () if isinstance(part, Mapping) and "text" in part
            ]
            result = "\n".join(texts) or result.get("data")
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    if len(shown) == 1 and isinstance(only := next(iter(shown.values())), str):
        return only
    return json.dumps(shown, ensure_ascii=False, default=str)


def _act(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool that takes the fields of an action."""
    fields = {
        name: _resolved(field, schema) for name, field in schema.get("properties", {}).items() if name not in _OWN
    }
    required = [name for name in schema.get("required", ()) if name in fields]
    shape = {"type": "object", "properties": fields, "required": required}
    about = " ".join(str(schema.get("description") or "Take one action.").split())
    return {"type": "function", "function": {"name": _ACT, "description": about, "parameters": shape}}


def _resolved(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a part of a schema with its references replaced by what they mean; recursive ones by anything."""

    def put(part: Any, inside: tuple[str, ...]) -> Any:
        if isinstance(part, Mapping):
            if isinstance(part.get("$ref"), str):
                name = part["$ref"].rpartition("/")[2]
                return {} if name in inside else put(schema.get("$defs", {}).get(name, {}), (*inside, name))
            return {key: put(one, inside) for key, one in part.items()}
        return [put(one, inside) for one in part] if isinstance(part, list) else part

    return put(value, ())


def _is_address(rest: str) -> bool:
    return rest.startswith(("http://", "https://"))


def _opened(rest: str, options: Mapping[str, Any], action: str | None, timeout: float) -> _Object | _Remote:
    if _is_address(rest):
        return _Remote(rest, timeout)
    return _Object(catalog.load("env", rest), options, action)


class _Object:
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
        if faults := catalog.argument_faults("env.options", made, options):
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

    def reset(self, task: dict[str, Any]) -> tuple[dict[str, Any], float | None, bool]:
        """Return observation, reward and whether the episode is over."""
        return _parts(_dumped(self._env.reset(**task)))

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float | None, bool]:
        """Return as `reset`; raises ValueError where an action does not fit."""
        from openenv.core.env_server.mcp_types import CallToolAction

        kind = CallToolAction if action.get("type") == "call_tool" else self._actions
        return _parts(_dumped(self._env.step(kind(**action))))

    def close(self) -> None:
        """Close it."""
        if callable(getattr(self._env, "close", None)):
            self._env.close()


class _Remote:
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

    def reset(self, task: dict[str, Any]) -> tuple[dict[str, Any], float | None, bool]:
        """Return as `_Object.reset`."""
        return self._asked(lambda: self._client.reset(**task))

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float | None, bool]:
        """Return as `reset`; raises ToolError where an action does not fit."""
        return self._asked(lambda: self._client.step(action))

    def _asked(self, ask: Callable[[], Any]) -> tuple[dict[str, Any], float | None, bool]:
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


def _parts(seen: dict[str, Any]) -> tuple[dict[str, Any], float | None, bool]:
    return seen, seen.get("reward"), bool(seen.get("done"))
