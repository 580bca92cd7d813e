"""Environments of Aviary: `env=aviary:MODULE:Class`, of an environment's class or of a task dataset's.

The tools are those that `reset` lists. A task is an index of a dataset, a text that the class makes an environment of
(`from_task`), or a seed. Environments may draw from the shared random generators, whose states are put in place for a
call and taken out again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from offline_agent import catalog
from offline_agent.envs.base import Environment
from offline_agent.errors import ConfigError
from offline_agent.seeding import derive_seed
from offline_agent_environments.adapters import Chance, adapted, seeds
from offline_agent_environments.adapters.rewards import Bounds, Rewards

_PATIENCE = 3  # empty answers in a row
_SPLITS = {"train": "train", "validation": "val", "test": "test"}


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of an environment or of a dataset; see `envs.base.environment_class`."""
    import aviary.core  # noqa: F401  (is it installed?)

    source = _Source(rest, args.get("options") or {}, args.get("splits"))
    first = next(source.tasks("train", args.get("tasks")), None)
    if first is None:
        raise ConfigError(f"env: aviary:{rest} has no task of the split train")
    with Chance().put_in_place(0):
        listed = asyncio.run(_listed(source.make(first)))
    tools = [_schema(tool) for tool in listed]
    if not tools:
        raise ConfigError(f"env: aviary:{rest} lists no tools, so that nothing can be called")
    return adapted(_Aviary, tools, name=rest, _source=source)


async def _listed(environment: Any) -> list[Any]:
    """Return the tools of an environment, which is closed again."""
    try:
        _, listed = await environment.reset()
        return list(listed)
    finally:
        await environment.close()


class _Aviary(Environment):
    """One environment of Aviary; `adapt` makes the classes.

    Args:
        options: Arguments of the class's constructor.
        splits: Per split, the `split` that a dataset's constructor is given; default train, val and test.
        observe: `module:function` that makes text of the messages that `reset` and `step` return.
        prompt: The system prompt.
        reward: `sum` of the rewards of an episode, or the `last` one.
        low: The reward of a lost episode; None = 0, and less is an error.
        high: The reward from which on the task is solved; None = 1, and more is an error.
        tasks: For an environment's class, and for a dataset without a length, the number of seeds in each split, or
            texts for `from_task`.
        demonstrate: See `envs.base.environment_class`.
    """

    _source: ClassVar[_Source]
    _tool_schemas: ClassVar[list[dict[str, Any]]]

    def __init__(
        self,
        options: dict[str, Any] | None = None,
        splits: dict[str, str] | None = None,
        observe: str | None = None,
        prompt: str | None = None,
        reward: str = "sum",
        low: float | None = None,
        high: float | None = None,
        tasks: int | list[str] | None = None,
        demonstrate: str | None = None,
    ) -> None:
        self._rewards = Rewards(Bounds(str(self.name), low, high), reward)  # type: ignore[attr-defined]
        self._observe = None if observe is None else catalog.load("env.observe", observe)
        self._chance = Chance()
        self._env: Any = None
        self.terminated = False
        if prompt is not None:
            self.system_prompt = prompt  # type: ignore[misc]

    @classmethod
    def tasks(cls, split: str, tasks: int | list[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the tasks of a split: a dataset's, those of some texts, or seeds."""
        return cls._source.tasks(split, tasks)

    def reset(self, **task: Any) -> str:
        """Start with `data` (a dataset's split) and `index`, with the text `task`, or with a `seed`."""
        self.terminated, self._silent = False, 0
        self._rewards.begin()
        self._close()
        with self._chance.put_in_place(int(task.get("seed", task.get("index", 0)))):
            self._env = self._source.make(task)
            messages, listed = asyncio.run(self._env.reset())
        known = {one["function"]["name"] for one in self._tool_schemas}
        if unknown := {str(tool.info.name) for tool in listed} - known:
            raise RuntimeError(f"this task has the tools {', '.join(sorted(unknown))}, which the first task has not")
        return self._text(messages)

    def get_reward(self) -> float | None:
        """Return the reward so far, between `low` and `high`; see `Rewards.scaled`."""
        return self._rewards.scaled(self.terminated)

    def _take(self, tool: str, arguments: Mapping[str, Any]) -> str:
        from aviary.core import ToolCall, ToolCallFunction, ToolRequestMessage

        self._silent = 0
        call = ToolCall(id="call", function=ToolCallFunction(name=tool, arguments=dict(arguments)))
        return self._sent(ToolRequestMessage(tool_calls=[call]))

    def _reply(self, text: str) -> str | None:
        """Send an answer without a call, which the environment may answer; the last of several empty ones ends it."""
        from aviary.core import Message

        self._silent = 0 if text.strip() else self._silent + 1
        if self._silent >= _PATIENCE:
            return None
        return self._sent(Message(role="assistant", content=text))

    def _sent(self, message: Any) -> str:
        with self._chance.put_in_place():
            messages, reward, done, cut = asyncio.run(self._env.step(message))
        self._rewards.add(reward)
        self.terminated = bool(done or cut)
        return self._text(messages)

    def _text(self, messages: list[Any]) -> str:
        if self._observe is not None:
            return str(self._observe(messages))
        return "\n".join(str(message.content or "") for message in messages)

    def __enter__(self) -> _Aviary:
        return self

    def __exit__(self, *_: Any) -> None:
        self._close()

    def _close(self) -> None:
        if self._env is not None:
            closed, self._env = self._env, None
            asyncio.run(closed.close())


class _Source:
    """The class that makes environments, and its tasks.

    Args:
        rest: `module:Class`.
        options: Arguments of its constructor.
        splits: As `_Aviary`'s.

    Raises:
        ConfigError: It is neither an environment nor a dataset, or takes other arguments.
    """

    def __init__(self, rest: str, options: Mapping[str, Any], splits: Any) -> None:
        from aviary.core import Environment as Foreign
        from aviary.core import TaskDataset

        self._rest, self._cls = rest, catalog.load("env", rest)
        if not isinstance(options, Mapping):
            raise ConfigError(f"env.options: got {options!r}, allowed: arguments of {rest} by name")
        if not (inspect.isclass(self._cls) and issubclass(self._cls, Foreign | TaskDataset)):
            raise ConfigError(f"env: got aviary:{rest}, allowed: a class of aviary's Environment or TaskDataset")
        parameters = inspect.signature(self._cls).parameters
        self._options, self._of_data = dict(options), issubclass(self._cls, TaskDataset)
        self._by_split = self._of_data and "split" in parameters and "split" not in options
        open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        if not open_ended and (unknown := [key for key in options if key not in parameters]):
            names = ", ".join(parameters) or "none"
            raise ConfigError(f"env.options: got {unknown[0]!r}, allowed: {names} (arguments of {rest})")
        if splits is not None and not (isinstance(splits, Mapping) and self._by_split and set(splits) <= set(_SPLITS)):
            raise ConfigError(
                f"env.splits: got {splits!r}, allowed: names for {', '.join(_SPLITS)}, where the constructor of a "
                "dataset has the parameter split"
            )
        self._names = {**_SPLITS, **(splits or {})}
        self._data: dict[str, Any] = {}

    def tasks(self, split: str, tasks: Any) -> Iterator[dict[str, Any]]:
        """Yield the tasks of a split."""
        count = self._length(self._names[split]) if self._of_data else None
        if count is not None:
            if tasks is not None:
                raise ConfigError(f"env.tasks: got {tasks!r}, allowed: nothing, {self._rest} has tasks of its own")
            for index in range(count):
                if self._by_split or _lot(index) == split:
                    yield {"data": self._names[split] if self._by_split else "all", "index": index}
        elif isinstance(tasks, list | tuple):
            if self._of_data or not all(isinstance(text, str) for text in tasks):
                raise ConfigError(f"env.tasks: got {tasks!r}, allowed: a number of seeds, or texts for an environment")
            if self._options:
                raise ConfigError(f"env.options: got {self._options!r} beside texts in env.tasks, of which from_task "
                                  "makes the environments without arguments; give one of the two")  # fmt: skip
            for text in tasks:
                if _lot(text) == split:
                    yield {"task": text}
        elif tasks is not None and (not isinstance(tasks, int) or isinstance(tasks, bool) or tasks < 1):
            raise ConfigError(f"env.tasks: got {tasks!r}, allowed: a number of seeds, 1 or more, or a list of texts")
        else:
            for seed in seeds(split, 1000 if tasks is None else tasks):
                yield {"seed": seed}

    def make(self, task: Mapping[str, Any]) -> Any:
        """Return the environment of a task."""
        if not self._of_data:
            return self._cls.from_task(task["task"]) if "task" in task else self._cls(**self._options)
        data = self._dataset(self._names["train"] if task.get("data", "all") == "all" else str(task["data"]))
        return data.get_new_env_by_idx(int(task["index"])) if "index" in task else data.get_new_env()

    def _length(self, split: str) -> int | None:
        data = self._dataset(split)
        try:
            return len(data)
        except TypeError:  # as Aviary says that there is none
            return None

    def _dataset(self, split: str) -> Any:
        key = split if self._by_split else ""
        if key not in self._data:
            own = {"split": split} if self._by_split else {}
            self._data[key] = self._cls(**self._options, **own)
        return self._data[key]


def _lot(name: Any) -> str:
    """Return the split of a task where the dataset has none: an eighth each for validation and test."""
    lot = derive_seed(0, "aviary split", name) % 8
    return "validation" if lot == 0 else "test" if lot == 1 else "train"


def _schema(tool: Any) -> dict[str, Any]:
    told = tool.info.model_dump(mode="json", exclude_none=True)
    shape = told.get("parameters") or {"type": "object", "properties": {}}
    about = told.get("description") or told["name"]
    return {"type": "function", "function": {"name": told["name"], "description": about, "parameters": shape}}
