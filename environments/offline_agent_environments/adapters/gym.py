"""Gymnasium environments with discrete or text actions: `env=gym:ID`, or `env=gym:MODULE:ID` of a module's own.

Each action that has a name, given or the environment's own, is a tool without arguments; else there is one tool, `act`.
The observation is what it draws in text (`render_mode="ansi"`), else its observation where that is text or small.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from offline_agent import catalog
from offline_agent.envs.base import Environment
from offline_agent.errors import ConfigError, ToolError
from offline_agent_environments.adapters import adapted, refused_names, seeds
from offline_agent_environments.adapters.rewards import Bounds, Rewards

_SMALL = 64  # numbers of an observation that are shown
_COLOURED = re.compile(r"\x1b\[([0-9;]+)m([^\x1b]*)\x1b\[0m")  # the innermost ones
_COLOURS = ("grey", "red", "green", "yellow", "blue", "magenta", "cyan", "white")  # codes 30 to 37, and 40 to 47 behind
_NAMED = 64  # most actions that become a tool each
_LISTED = re.compile(r"^\s*[-*|]\s*(\d+)\s*[:|]\s*([^|\n]*[^|\s])", re.M)  # `- 0: left` and `| 0 | left |`
_TRIED = 20  # random actions that rewards are looked at in
Send = Callable[[Mapping[str, Any]], Any]  # makes an action of a tool's arguments


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of a Gymnasium environment; see `envs.base.environment_class`."""
    made = _make(rest, args.get("options") or {})
    try:
        tools, send = _tools(made, args.get("actions"))
        if args.get("observe") is None:
            _check_observation(made)
        _check_rewards(made, Rewards(Bounds(rest, args.get("low"), args.get("high")), args.get("reward", "sum")))
        about = {"max_steps": getattr(made.spec, "max_episode_steps", None), "system_prompt": _about(made)}
    finally:
        made.close()
    return adapted(_Gym, tools, name=rest, _id=rest, _send=send, **about)


class _Gym(Environment):
    """One Gymnasium environment; `adapt` makes the classes.

    Args:
        options: Arguments of `gymnasium.make`.
        actions: Names of the actions of a discrete space, in order; they become tools.
        observe: `module:function` that makes text of (environment, observation).
        prompt: The system prompt, in place of the environment's own description.
        reward: `sum` of the rewards of an episode, or the `last` one.
        low: The reward of a lost episode; None = 0, and less is an error.
        high: The reward from which on the task is solved; None = 1, and more is an error.
        tasks: Tasks of each split: seeds.
        demonstrate: See `envs.base.environment_class`.
    """

    _id: ClassVar[str]
    _send: ClassVar[Mapping[str, Send]]
    _tool_schemas: ClassVar[list[dict[str, Any]]]

    def __init__(
        self,
        options: dict[str, Any] | None = None,
        actions: list[str] | None = None,
        observe: str | None = None,
        prompt: str | None = None,
        reward: str = "sum",
        low: float | None = None,
        high: float | None = None,
        tasks: int = 1000,
        demonstrate: str | None = None,
    ) -> None:
        self._rewards = Rewards(Bounds(self._id, low, high), reward)
        self._env = _make(self._id, options or {})
        self._observe = None if observe is None else catalog.load("env.observe", observe)
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
        self.terminated = False
        self._rewards.begin()
        return self._text(observation)

    def get_reward(self) -> float | None:
        """Return the reward so far, between `low` and `high`; see `Rewards.scaled`."""
        return self._rewards.scaled(self.terminated)

    def _take(self, tool: str, arguments: Mapping[str, Any]) -> str:
        observation, reward, over, cut, _ = self._env.step(self._send[tool](arguments))
        self._rewards.add(reward)
        self.terminated = bool(over or cut)
        return self._text(observation)

    def _text(self, observation: Any) -> str:
        if self._observe is not None:
            return str(self._observe(self._env, observation))
        if isinstance(observation, str):
            return observation
        if getattr(self._env, "render_mode", None) == "ansi":
            return uncoloured(str(self._env.render())).strip("\n")
        return json.dumps(_plain(observation))

    def __exit__(self, *_: Any) -> None:
        self._env.close()

    def __enter__(self) -> _Gym:
        return self


def uncoloured(drawn: str) -> str:
    """Return a drawing with its colours in words, as in `[blue R]`; red behind a square, a usual mark, is `[S]`."""

    def mark(found: re.Match[str]) -> str:
        codes = [int(code) for code in found[1].split(";") if code]
        names = [_COLOURS[code % 10] for code in codes if code // 10 in (3, 4) and code % 10 < 8 and code != 41]
        return f"[{' '.join([*names, found[2]])}]"

    before = ""
    while before != drawn:  # a coloured part may hold others
        before, drawn = drawn, _COLOURED.sub(mark, drawn)
    return drawn


def _make(id: str, options: Mapping[str, Any]) -> Any:
    import gymnasium

    if ":" in id:
        catalog.load("env", f"{id.rpartition(':')[0]}:__name__")  # it registers the environment
        id = id.rpartition(":")[2]
    if not isinstance(options, Mapping):
        raise ConfigError(f"env.options: got {options!r}, allowed: arguments of gymnasium.make by name")
    try:
        spec = gymnasium.spec(id)
        creator = spec.entry_point
        if isinstance(creator, str):
            creator = gymnasium.envs.registration.load_env_creator(creator)
        modes = (getattr(creator, "metadata", None) or {}).get("render_modes") or []
        drawn = {"render_mode": "ansi"} if "ansi" in modes and "render_mode" not in options else {}
        return gymnasium.make(id, **{**drawn, **options})
    except gymnasium.error.Error as error:
        module = "" if ":" in id else " (write gym:MODULE:ID where another module registers it)"
        raise ConfigError(f"env: gym:{id}: {error}{module}") from error


def _tools(made: Any, names: Sequence[str] | None) -> tuple[list[dict[str, Any]], dict[str, Send]]:
    """Return the schemas of the tools, and how the arguments of each become an action."""
    from gymnasium import spaces

    space = made.action_space
    if names is not None and not isinstance(space, spaces.Discrete):
        raise ConfigError(f"env.actions: gym:{made.spec.id} has actions of {space}, allowed: names of discrete ones")
    if isinstance(space, spaces.Text):
        said = {"type": "string", "description": f"the action, {space.min_length} to {space.max_length} characters",
                "minLength": space.min_length, "maxLength": space.max_length}  # fmt: skip
        return [_schema("act", "Send an action as text.", {"action": said})], {"act": lambda given: given["action"]}
    if not isinstance(space, spaces.Discrete):
        fields = _fields(space)
        if fields is None:
            raise ConfigError(
                f"env: gym:{made.spec.id} has actions of {space}, allowed: discrete ones, text, tuples and dicts of "
                "discrete ones. Write a class of your own that holds it (docs/environments.md, A Gym environment)"
            )
        return [_schema("act", "Take one step.", fields)], {"act": lambda given: _assembled(space, given)}
    first, count = int(space.start), int(space.n)
    names = names or _own_names(made, first, count)
    if names is None:
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
    ends = {name: (low, low + size - 1) for name, (low, size) in parts.items()}
    return {name: {"type": "integer", "minimum": low, "maximum": high, "description": f"{low} to {high}"}
            for name, (low, high) in ends.items()}  # fmt: skip


def _assembled(space: Any, given: Mapping[str, Any]) -> Any:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {name: int(given[name]) for name in space}
    values = [int(given[f"part_{n}"]) for n in range(len(given))]
    if isinstance(space, spaces.Tuple):
        return tuple(values)
    import numpy

    return numpy.array(values, dtype=space.dtype)


def _own_names(made: Any, first: int, count: int) -> list[str] | None:
    """Return the names that the environment has for its actions, one each and all different; None where it has not."""
    bare, numbers = made.unwrapped, list(range(first, first + count))
    found: list[str] = []
    if callable(getattr(bare, "get_action_meanings", None)):
        found = [str(name) for name in bare.get_action_meanings()]
    elif members := getattr(getattr(bare, "actions", None), "__members__", None):  # an enumeration, as MiniGrid has
        found = list(members) if [int(value) for value in members.values()] == numbers else []
    else:
        section = re.search(r"## Action Space(.*?)(?:\n\s*## |\Z)", type(bare).__doc__ or "", re.S)
        listed = dict(_LISTED.findall(section.group(1))) if section else {}
        found = list(listed.values()) if list(listed) == list(map(str, numbers)) else []
    fit = len(found) == count <= _NAMED and len(set(map(_word, found))) == count
    return found if fit else None


def _word(name: str) -> str:
    word = re.sub(r"\W+", "_", str(name).strip().lower().replace("'", "")).strip("_")[:64] or "action"
    return f"take_{word}" if word[0].isdigit() or refused_names(_Gym, [word]) else word


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
            f"env: gym:{made.spec.id} has observations of {str(space)[:200]}, which are no text. Name a function that "
            "makes text of (environment, observation): env.observe=module:function"
        )


def _check_rewards(made: Any, rewards: Rewards) -> None:
    """Raise ConfigError where a few random actions, or the threshold of its registration, leave the bounds."""
    threshold = made.spec.reward_threshold
    fault = None if threshold is None else rewards.bounds.fault(float(threshold))
    made.reset(seed=0)
    made.action_space.seed(0)
    for _ in range(_TRIED):
        _, reward, over, cut, _ = made.step(made.action_space.sample())
        rewards.add(reward)
        fault = fault or rewards.fault()
        if over or cut:
            break
    if fault:
        raise ConfigError(f"env: gym: {fault}")


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
