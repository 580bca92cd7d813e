"""Environments of OpenEnv: `env=openenv:module:Class` in this process, `env=openenv:URL` of a server.

Where an environment lists tools they are offered, else there is one tool, `act`, with the fields of its actions. A task
is what `reset` takes, such as a seed, or a split and an index.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from offline_agent import catalog
from offline_agent.arguments.foreign import self_contained
from offline_agent.envs.base import Environment
from offline_agent.errors import ToolError
from offline_agent_environments.adapters import adapted, seeds
from offline_agent_environments.adapters.openenv_links import is_address, opened
from offline_agent_environments.adapters.rewards import Bounds, Rewards

_ACT = "act"
_OWN = ("done", "reward", "metadata")  # fields of each observation and action that are not shown


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of an OpenEnv environment; see `envs.base.environment_class`."""
    import openenv.core  # noqa: F401  (is it installed?)

    timeout = float(args.get("timeout", 60.0))
    link = opened(rest, args.get("options") or {}, args.get("action"), timeout)
    try:
        link.reset({"seed": 0})
        tools = link.tools()
        count = link.tasks if args.get("tasks") is None else None
    finally:
        link.close()
    return adapted(
        _OpenEnv, tools or [_act(link.schema)],
        name=rest, _rest=rest, _lists_tools=bool(tools), replay_only=is_address(rest), _counted=count,
    )  # fmt: skip


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
        demonstrate: See `envs.base.environment_class`.
    """

    _rest: ClassVar[str]
    _tool_schemas: ClassVar[list[dict[str, Any]]]
    _lists_tools: ClassVar[bool]
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
        self._link = opened(self._rest, options or {}, action, timeout)
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

    def _take(self, name: str, arguments: dict[str, Any]) -> str:
        action = {"type": "call_tool", "tool_name": name, "arguments": arguments} if self._lists_tools else arguments
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
    known = self_contained(schema).get("properties", {})
    fields = {name: field for name, field in known.items() if name not in _OWN}
    required = [name for name in schema.get("required", ()) if name in fields]
    shape = {"type": "object", "properties": fields, "required": required}
    about = " ".join(str(schema.get("description") or "Take one action.").split())
    return {"type": "function", "function": {"name": _ACT, "description": about, "parameters": shape}}
