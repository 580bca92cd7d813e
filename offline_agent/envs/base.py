"""The environment contract: a class, the arguments of its constructor, its tools and its tasks.

An environment is a plain class with TRL's `environment_factory` contract; nothing is inherited or registered:

* `reset(**task) -> str`, the first observation; `tasks(split)`, a class method that yields dicts of its arguments;
* every other public method with type hints and a Google docstring is a tool;
* `terminated`, set True when the episode is over; `get_reward()`, in [0, 1], at the end.

Optional: attributes `system_prompt`, `name`, `version`, `irreversible`, `restarts` (tools that begin the task anew),
`replay_only`, `one_thread`, `max_steps`, `deterministic_verifier`;
`turn_reward` (class attribute or property: the reward of the last call alone, in [0, 1], or None); properties
`fingerprint`, `achieved_goal`; `__deepcopy__`, `__enter__`, `__exit__`; the class method
`demonstrate(task, messages, rng, noise)` (a scripted expert); `_reply(text)` (the scripted user's next turn after an
answer without a call); `_tools` (a `ToolSet`, where each task has its own); `_answers_differ = False` (the text of a
final answer has no effect). `tasks` is given the constructor's arguments that it has parameters for. See
docs/environments.md for an example.

An adapter makes environments of other projects, such as `env=gym:ID`: a function `adapt(rest, args) -> class` in a
module of its own. It is given what stands after the colon and the arguments of `env`; it alone imports its library.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from offline_agent import catalog
from offline_agent.envs.description import EnvDescription
from offline_agent.envs.episode import Episode, StepResult
from offline_agent.envs.isolation.client import EpisodeServer
from offline_agent.envs.isolation.protocol import stand_in
from offline_agent.envs.tools import ToolSet
from offline_agent.envs.tools.validation import clean_text
from offline_agent.errors import ConfigError, EnvironmentFault, ToolError, did_you_mean, ends_the_run, in_words
from offline_agent.records import Task, Verdict

if TYPE_CHECKING:
    from offline_agent.judges.judge import Judge

__all__ = ["EnvSpec", "Environment", "Episode", "StepResult", "ToolError", "ToolSet", "twin"]

E = TypeVar("E")

SPLITS = ("train", "validation", "test")
_TOLD = 500  # characters of a foreign error


class Environment:
    """A base class that adds comfort, not rights: defaults for the optional parts of the contract."""

    system_prompt: ClassVar[str] = ""
    version: ClassVar[str] = "1"
    irreversible: ClassVar[frozenset[str]] = frozenset()
    replay_only: ClassVar[bool] = False
    one_thread: ClassVar[bool] = True
    max_steps: ClassVar[int | None] = None
    deterministic_verifier: ClassVar[bool] = True
    terminated: bool = False

    def reset(self, *_: Any, **task: Any) -> str:
        """Start a task and return the first observation."""
        raise NotImplementedError(f"{type(self).__name__} must define reset(self, ...) -> str")

    def get_reward(self) -> float | Verdict | None:
        """Return the reward of the present state in [0, 1]; 1.0 = success, None = cannot be judged."""
        raise NotImplementedError(f"{type(self).__name__} must define get_reward(self) -> float")


def twin(environment: E) -> E:
    """Return a copy that shares all attributes: the `__deepcopy__` of a class that replaces values and changes none."""
    other = object.__new__(type(environment))
    other.__dict__.update(environment.__dict__)
    return other


class EnvSpec(EnvDescription):
    """An environment that can be opened; see `EnvDescription` for the arguments."""

    def __init__(self, cls: type, args: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(cls, args, **options)
        self._server: EpisodeServer | None = None
        self._starting = threading.Lock()

    @classmethod
    def load(
        cls, name_or_path: str, args: Mapping[str, Any] | None = None, *, python: str | None = None, **options: Any
    ) -> EnvSpec:
        """Return the environment of that name.

        Args:
            name_or_path: A short name of the catalog, `module:Class`, `path/to/file.py:Class`, or one that is adapted,
                such as `gym:ID`.
            args: Keyword arguments of the environment's constructor.
            python: The interpreter that has what it needs; None = this one.
            options: `sandboxed`, `max_observation_chars`, `isolated`, `most_open`, `judge`; see the class.

        Raises:
            ConfigError: There is no such environment, or it does not meet the contract.
        """
        if python is not None:
            return cls._elsewhere(python, name_or_path, dict(args or {}), options)
        found = environment_class(name_or_path, args)
        spec = cls(found, args, name=None if ":" in name_or_path else name_or_path, **options)
        spec.path = name_or_path
        return spec

    @classmethod
    def _elsewhere(cls, python: str, path: str, args: dict[str, Any], options: Mapping[str, Any]) -> EnvSpec:
        """Return an environment of another interpreter; it is isolated."""
        inside = {name: options[name] for name in ("sandboxed", "max_observation_chars") if name in options}
        server = EpisodeServer(path, args, inside, python)
        facts: dict[str, Any] = server.facts or {}
        spec = cls(stand_in(facts, server.ask), {}, **{**options, "isolated": True})
        spec.path, spec.args, spec.python, spec._server = path, args, python, server
        spec.tools, spec.turn_rewards = ToolSet.from_json(facts["tools"]), facts["turn_rewards"]
        spec.fingerprints = facts["fingerprints"]
        return spec

    def tasks(self, split: str) -> Iterator[Task]:
        """Yield the tasks of a split, in the environment's order.

        Raises:
            ConfigError: The environment has no `tasks`, or a task is not a dict of JSON values.
            EnvironmentFault: `tasks` raised.
        """
        if split not in SPLITS:
            raise ConfigError(f"tasks.split: got {split!r}, allowed: {', '.join(SPLITS)}.{did_you_mean(split, SPLITS)}")
        seen: set[str] = set()
        for index, entry in enumerate(self.entries(split)):
            task = self.task(entry, split, index)
            if task.task_id in seen:
                raise ConfigError(f"environment {self.name}, {split}: two tasks are called {task.task_id!r}")
            seen.add(task.task_id)
            yield task

    def entries(self, split: str) -> Iterator[Any]:
        """Yield what the class lists as the tasks of a split, unchecked. Raises as `tasks`."""
        listing = getattr(self.cls, "tasks", None)
        if listing is None:
            raise ConfigError(
                f"environment {self.name} has no tasks; give it a class method `tasks(cls, split)` that yields dicts"
                " of reset's arguments, or name a file with tasks.file"
            )
        taken = inspect.signature(listing).parameters
        try:
            yield from listing(split, **{k: v for k, v in self.args.items() if k in taken})
        except (ConfigError, EnvironmentFault, GeneratorExit):  # the last: the caller takes no more tasks
            raise
        except BaseException as error:
            if ends_the_run(error):
                raise
            raise EnvironmentFault(f"{self.name}: tasks({split!r}) raised {in_words(error)}") from error

    def task(self, entry: Any, split: str, index: int) -> Task:
        """Return one task from the dict that `tasks`, or a line of a task file, gives.

        `task_id` names it (`<split>-<index>` without one) and is passed on only if `reset` has such a parameter.

        Raises:
            ConfigError: The entry is no dict of JSON values with text keys.
        """
        where = f"environment {self.name}, {split} task {index}"
        if not isinstance(entry, Mapping) or not all(isinstance(key, str) for key in entry):
            raise ConfigError(f"{where}: must be a dict of reset's arguments, got {type(entry).__name__}")
        args = dict(entry)
        task_id = str(args.get("task_id", f"{split}-{index}"))
        if clean_text(task_id) != task_id:
            raise ConfigError(f"{where}: task_id: got {task_id!r}, allowed: text without halves of characters (lone "
                              "surrogates), which no table can hold; name the task otherwise")  # fmt: skip
        parameters = inspect.signature(self.cls.reset).parameters  # type: ignore[attr-defined]
        if "task_id" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            args.pop("task_id", None)
        try:
            json.dumps(args, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: its arguments cannot be written as JSON ({error})") from error
        return Task(task_id, split, args)

    def open(self) -> Episode:
        """Return a fresh environment instance, to be reset.

        Raises:
            EnvironmentFault: The constructor raised.
            ConfigError: It is to be isolated, and its process cannot load it.
        """
        if self.isolated:
            with self._starting:
                if self._server is None:
                    options = {"sandboxed": self.sandboxed, "max_observation_chars": self.max_observation_chars}
                    self._server = EpisodeServer(self.path, self.args, options)
            return self._server.open(self)
        if self.watch is not None:
            self.watch.begin()
        try:
            environment = self.cls(**self.args)
            if hasattr(self.cls, "__enter__"):
                entered = environment.__enter__()
                environment = environment if entered is None else entered
        except (ConfigError, EnvironmentFault):
            raise
        except BaseException as error:
            if ends_the_run(error):
                raise
            raise EnvironmentFault(f"{self.name}: opening it raised {in_words(error)}") from error
        return Episode(self, environment)


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
        detail = " ".join(in_words(error).replace("*", " ").split())
        raise ConfigError(f"env: {name} cannot be adapted: {detail[:_TOLD]}") from error


def missing_members(cls: type, judge: Judge | None = None) -> Iterator[str]:
    """Yield what an environment's class lacks for a run of its own, and how a Gym environment becomes one."""
    if not inspect.isclass(cls):
        return
    if not hasattr(cls, "tasks"):
        yield (
            f"environment {cls.__name__} has no tasks: give it a class method `tasks(cls, split)` that yields dicts of "
            "reset's arguments (or name a file with tasks.file on each command)"
        )
    if not hasattr(cls, "get_reward") and judge is None:
        yield (
            f"environment {cls.__name__} has no get_reward(self) -> float: the reward of the present state in [0, 1], "
            "1.0 = success (or name a judge with judge=)"
        )
    step = inspect.getattr_static(cls, "step", None)
    if inspect.isfunction(step) and "action" in inspect.signature(step).parameters:
        yield (
            f"environment {cls.__name__} looks like a Gym environment, whose step(action) is one tool for everything. "
            "Hold it in an attribute instead of inheriting from it: give each kind of action a method with typed "
            "parameters that returns text, let reset(self, **task) return text and not (observation, info), set "
            "`terminated`, and return the reward from get_reward (docs/environments.md, A Gym environment)"
        )
