"""Gymnasium environments with discrete or text actions: `env=gym:ID`.

Each action that has a name is a tool without arguments; else there is one tool, `act`. What the environment draws in text
(`render_mode="ansi"`) is the observation, else the observation itself where it is text or small.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from offline_agent import catalog
from offline_agent.envs.adapters import check_bounds, scaled, seeds
from offline_agent.envs.base import Environment
from offline_agent.errors import ConfigError, ToolError

_SMALL = 64  # numbers of an observation that are shown
_COLOURED = re.compile(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m", re.S)
_NAMED = 64  # most actions that become a tool each


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of a Gymnasium environment; see `adapters.environment_class`."""
    given = {name: args[name] for name in ("options", "actions", "observe") if name in args}
    made = _make(rest, given.get("options") or {})
    try:
        tools, send = _tools(made, given.get("actions"))
        if given.get("observe") is None:
            _check_observation(made)
        limit = getattr(made.spec, "max_episode_steps", None)
        about = _about(made)
    finally:
        made.close()
    return type(
        "GymEnvironment", (_Gym,),
        {"name": rest, "_id": rest, "_send": send, "_tool_schemas": tools, "max_steps": limit, "system_prompt": about,
         "__module__": __name__, **{tool["function"]["name"]: _method(tool["function"]["name"]) for tool in tools}},
    )  # fmt: skip


class _Gym(Environment):
    """One Gymnasium environment; `adapt` makes the classes.

    Args:
        options: Arguments of `gymnasium.make`.
        actions: Names of the actions of a discrete space, in order; they become tools.
        observe: `module:function` that makes text of (environment, observation).
        prompt: The system prompt, in place of the environment's own description.
        reward: `sum` of the rewards of an episode, or the `last` one.
        low: The least that this can be.
        high: From here on the task is solved.
        tasks: Tasks of each split: seeds.
    """

    _id: ClassVar[str]
    _send: ClassVar[Mapping[str, Callable[[Mapping[str, Any]], Any]]]
    _tool_schemas: ClassVar[list[dict[str, Any]]]

    def __init__(
        self,
        options: dict[str, Any] | None = None,
        actions: list[str] | None = None,
        observe: str | None = None,
        prompt: str | None = None,
        reward: str = "sum",
        low: float = 0.0,
        high: float = 1.0,
        tasks: int = 1000,
    ) -> None:
        check_bounds(low, high)
        if reward not in ("sum", "last"):
            raise ConfigError(f"env.reward: got {reward!r}, allowed: sum, last")
        self._env = _make(self._id, options or {})
        self._observe = None if observe is None else catalog.load("env.observe", observe)
        self._sum, self._low, self._high = reward == "sum", low, high
        self._total = 0.0
        self.terminated = False
        if prompt is not None:
            self.system_prompt = prompt  # type: ignore[misc]

    @classmethod
    def tasks(cls, split: str, tasks: int = 1000) -> Iterator[dict[str, Any]]:
        """Yield the seeds of a split."""
        for seed in seeds(split, tasks):
            yield {"seed": seed}

    def reset(self, seed: int) -> str:
        """Start with a seed."""
        observation, _ = self._env.reset(seed=seed)
        self._total, self.terminated = 0.0, False
        return self._text(observation)

    def get_reward(self) -> float:
        """Return the reward of the episode so far, between `low` and `high`."""
        return scaled(self._total, self._low, self._high)

    def _take(self, tool: str, arguments: Mapping[str, Any]) -> str:
        observation, reward, over, cut, _ = self._env.step(self._send[tool](arguments))
        self._total = self._total + float(reward) if self._sum else float(reward)
        self.terminated = bool(over or cut)
        return self._text(observation)

    def _text(self, observation: Any) -> str:
        if self._observe is not None:
            return str(self._observe(self._env, observation))
        if isinstance(observation, str):
            return observation
        if getattr(self._env, "render_mode", None) == "ansi":
            return _COLOURED.sub(r"[\1]", str(self._env.render())).strip("\n")
        return json.dumps(_plain(observation))

    def __exit__(self, *_: Any) -> None:
        self._env.close()

    def __enter__(self) -> _Gym:
        return self


def _method(name: str) -> Callable[..., str]:
    def tool(self: _Gym, **arguments: Any) -> str:
        return self._take(name, arguments)

    tool.__name__ = name
    return tool


def _make(id: str, options: Mapping[str, Any]) -> Any:
    import gymnasium

    if not isinstance(options, Mapping):
        raise ConfigError(f"env.options: got {options!r}, allowed: arguments of gymnasium.make by name")
    modes = []
    try:
        spec = gymnasium.spec(id)
        creator = gymnasium.envs.registration.load_env_creator(spec.entry_point) if isinstance(
            spec.entry_point, str) else spec.entry_point  # fmt: skip
        modes = (getattr(creator, "metadata", None) or {}).get("render_modes") or []
        drawn = {"render_mode": "ansi"} if "ansi" in modes and "render_mode" not in options else {}
        return gymnasium.make(id, **{**drawn, **options})
    except gymnasium.error.Error as error:
        raise ConfigError(f"env: gym:{id}: {error}") from error


def _tools(
    made: Any, names: Sequence[str] | None
) -> tuple[list[dict[str, Any]], dict[str, Callable[[Mapping[str, Any]], Any]]]:
    """Return the schemas of the tools, and how the arguments of each become an action."""
    from gymnasium import spaces

    space = made.action_space
    if isinstance(space, spaces.Text):
        said = {"type": "string", "description": f"the action, {space.min_length} to {space.max_length} characters",
                "minLength": space.min_length, "maxLength": space.max_length}  # fmt: skip
        return [_schema("act", "Send an action as text.", {"action": said})], {"act": lambda given: given["action"]}
    if not isinstance(space, spaces.Discrete):
        fields = _fields(space)
        if fields is None:
            raise ConfigError(
                f"env: gym:{made.spec.id} has actions of {space}, allowed: discrete ones, text, and tuples and dicts of "
                "discrete ones. Write a class of your own that holds it (docs/environments.md, A Gym environment)"
            )
        return [_schema("act", "Take one step.", fields)], {"act": lambda given: _assembled(space, given)}
    first, count = int(space.start), int(space.n)
    names = names or _own_names(made, count)
    if names is None or count > _NAMED:
        number = {"type": "integer", "minimum": first, "maximum": first + count - 1,
                  "description": f"the number of the action, {first} to {first + count - 1}"}  # fmt: skip
        return [_schema("act", "Take one step.", {"action": number})], {"act": lambda given: _number(space, given)}
    if len(names) != count or len(set(map(_word, names))) != count:
        raise ConfigError(f"env.actions: got {list(names)}, allowed: {count} different names, one for each action")
    words = [_word(name) for name in names]
    return (
        [_schema(word, f"Take the action {name}.", {}) for word, name in zip(words, names, strict=True)],
        {word: lambda given, number=first + place: number for place, word in enumerate(words)},  # type: ignore[misc]
    )


def _number(space: Any, given: Mapping[str, Any]) -> int:
    if not space.contains(given["action"]):
        raise ToolError(f"action: got {given['action']}, allowed: {space.start} to {space.start + space.n - 1}")
    return int(given["action"])


def _fields(space: Any) -> dict[str, Any] | None:
    """Return the parameters of an action of several discrete parts; None where a part is none."""
    from gymnasium import spaces

    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        parts = {f"part_{n}": (int(low), int(size)) for n, (low, size) in enumerate(zip(space.start, space.nvec,
                                                                                        strict=True))}  # fmt: skip
    elif isinstance(space, spaces.MultiBinary) and isinstance(space.n, int):
        parts = {f"part_{n}": (0, 2) for n in range(space.n)}
    elif isinstance(space, spaces.Tuple) and all(isinstance(one, spaces.Discrete) for one in space):
        parts = {f"part_{n}": (int(one.start), int(one.n)) for n, one in enumerate(space)}
    elif isinstance(space, spaces.Dict) and all(isinstance(one, spaces.Discrete) for one in space.values()):
        parts = {name: (int(one.start), int(one.n)) for name, one in space.items()}
    else:
        return None
    return {name: {"type": "integer", "minimum": low, "maximum": low + size - 1, "description": f"{low} to {low + size - 1}"}
            for name, (low, size) in parts.items()}  # fmt: skip


def _assembled(space: Any, given: Mapping[str, Any]) -> Any:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {name: int(given[name]) for name in space}
    values = [int(given[f"part_{n}"]) for n in range(len(given))]
    if isinstance(space, spaces.Tuple):
        return tuple(values)
    import numpy

    return numpy.array(values, dtype=space.dtype)


def _own_names(made: Any, count: int) -> list[str] | None:
    """Return the names that the environment has for its actions."""
    bare = made.unwrapped
    if callable(getattr(bare, "get_action_meanings", None)):
        return [str(name) for name in bare.get_action_meanings()]
    listed = getattr(bare, "actions", None)  # an enumeration, as MiniGrid has
    members = getattr(listed, "__members__", None)
    if members and [int(value) for value in members.values()] == list(range(count)):
        return list(members)
    return None


def _word(name: str) -> str:
    word = re.sub(r"\W+", "_", str(name).strip().lower()).strip("_") or "action"
    return f"take_{word}" if word[0].isdigit() or word in ("reset", "tasks", "get_reward", "terminated") else word


def _schema(name: str, about: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    shape = {"type": "object", "properties": dict(fields), "required": list(fields)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": shape}}


def _check_observation(made: Any) -> None:
    from gymnasium import spaces

    space = made.observation_space
    if isinstance(space, spaces.Text) or getattr(made, "render_mode", None) == "ansi":
        return
    try:
        size = spaces.flatdim(space)
    except (ValueError, NotImplementedError):
        size = _SMALL + 1
    if size > _SMALL and not isinstance(space, spaces.Discrete):
        raise ConfigError(
            f"env: gym:{made.spec.id} has observations of {str(space)[:200]}, which are no text. Name a function that makes "
            "text of (environment, observation): env.observe=module:function"
        )


def _about(made: Any) -> str:
    """Return the description in the environment's docstring."""
    text = type(made.unwrapped).__doc__ or ""
    found = re.search(r"## Description\s*(.*?)(?:\n\s*## |\Z)", text, re.S)
    return " ".join((found.group(1) if found else text.partition("\n\n")[0]).split())[:1500]


def _plain(value: Any) -> Any:
    """Return an observation as JSON values."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value.tolist() if hasattr(value, "tolist") else value
