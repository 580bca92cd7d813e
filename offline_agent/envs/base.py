"""The environment contract: a class, the arguments of its constructor, its tools and its tasks.

An environment is a plain class with TRL's `environment_factory` contract; nothing is inherited or registered:

* `reset(**task) -> str`, the first observation; `tasks(split)`, a class method that yields dicts of its arguments;
* every other public method with type hints and a Google docstring is a tool;
* `terminated`, set True when the episode is over; `get_reward()`, in [0, 1], at the end.

Optional: attributes `system_prompt`, `name`, `version`, `irreversible`, `replay_only`, `one_thread`, `max_steps`,
`deterministic_verifier`;
`turn_reward` (class attribute or property: the reward of the last call alone, in [0, 1], or None); properties
`fingerprint`, `achieved_goal`; `__deepcopy__`, `__enter__`, `__exit__`; the class method
`demonstrate(task, messages, rng, noise)` (a scripted expert); `_reply(text)` (the scripted user's next turn after an
answer without a call); `_tools` (a `ToolSet`, where each task has its own); `_answers_differ = False` (the text of a
final answer has no effect). `tasks` is given the constructor's arguments that it has parameters for. See
docs/environments.md for an example.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from offline_agent import catalog
from offline_agent.envs.census import Census
from offline_agent.envs.episode import Episode, StepResult, ToolError
from offline_agent.envs.judged import JudgedEpisode
from offline_agent.envs.tools import ToolSet
from offline_agent.envs.validation import clean_text
from offline_agent.errors import ConfigError, EnvironmentFault, did_you_mean, ends_the_run, in_words
from offline_agent.records import Task, Verdict

if TYPE_CHECKING:
    from offline_agent.envs.isolation.client import EpisodeServer
    from offline_agent.envs.watch import CallWatch
    from offline_agent.judges.judge import Judge

__all__ = ["EnvSpec", "Environment", "Episode", "StepResult", "ToolError", "ToolSet"]

SPLITS = ("train", "validation", "test")


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


class EnvSpec:
    """An environment class and the arguments of its constructor, checked once.

    Args:
        cls: The class.
        args: Keyword arguments of its constructor.
        name: Short name; the class's own `name`, else the class's name, by default.
        sandboxed: Whether tools marked irreversible may be called.
        max_observation_chars: Longer observations are cut, with a note that says so.
        isolated: Open environments in processes of their own (`envs.isolation`).
        most_open: Number of environments that may be open at once; see `Census`.
        judge: Gives the verdicts; None = the class's own `get_reward`.

    Attributes:
        path: Name under which another process loads the class.
        python: The interpreter that runs it; None = this one.
        tools: The class's tools. A live episode may have fewer: the policy is shown `Episode.tools`.
        max_steps: The class's own longest episode in actions; None = it names none (`envs.episode_length`).
        demonstrate: The scripted expert `(task args, messages, rng, noise) -> message`; None where there is none.
        deterministic_verifier: The same end state always gets the same verdict.
        turn_rewards: The class has a `turn_reward`: a reward of each single call.
        runs_code: The class says, by `runs_code = True`, that it runs what a policy wrote.
        fingerprints: The class has a `fingerprint`: a hash of its state.
        census: Counts the environments that are open.
        watch: Told of each call; set by the conformance suite, None elsewhere.

    Raises:
        ConfigError: The class does not meet the contract: every fault found, one line each.
    """

    def __init__(
        self,
        cls: type,
        args: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        sandboxed: bool = False,
        max_observation_chars: int = 8000,
        isolated: bool = False,
        most_open: int = 4096,
        judge: Judge | None = None,
    ) -> None:
        self.cls = cls
        self.judge = judge
        self.path = f"{cls.__module__}:{cls.__qualname__}" if inspect.isclass(cls) else ""
        self.isolated = isolated
        self.python: str | None = None
        self.census = Census(most_open)
        self._server: EpisodeServer | None = None
        self._starting = threading.Lock()
        self.args = dict(args or {})
        declared = inspect.getattr_static(cls, "name", None)
        self.name: str = declared if isinstance(declared, str) else name or cls.__name__
        self.version = str(getattr(cls, "version", "1"))
        self.sandboxed = sandboxed
        self.max_observation_chars = max_observation_chars
        if not inspect.isclass(cls):
            raise ConfigError(f"env: {cls!r} is no class")
        faults = [*_class_faults(cls), *catalog.argument_faults("env", cls, self.args)]
        try:
            self.tools = ToolSet.of(cls)
        except ConfigError as error:
            faults.extend(error.faults)
        if faults:
            raise ConfigError(faults)
        prompt = getattr(cls, "system_prompt", "")
        self.system_prompt: str = prompt if isinstance(prompt, str) else ""
        self.irreversible = frozenset(getattr(cls, "irreversible", ()))
        self.replay_only = bool(getattr(cls, "replay_only", False))
        self._one_thread = bool(getattr(cls, "one_thread", True))
        self.max_steps: int | None = getattr(cls, "max_steps", None)
        own = bool(getattr(cls, "deterministic_verifier", True))
        self.deterministic_verifier = own and (judge is None or judge.deterministic)
        self.turn_rewards = inspect.getattr_static(cls, "turn_reward", self) is not self
        self.runs_code = bool(getattr(cls, "runs_code", False))
        self.fingerprints = inspect.getattr_static(cls, "fingerprint", None) is not None
        self.watch: CallWatch | None = None
        self.demonstrate: Callable[..., Any] | None = getattr(cls, "demonstrate", None)
        for tool in sorted(self.irreversible - set(self.tools.names)):
            near = did_you_mean(tool, self.tools.names)
            faults.append(f"environment {self.name}: irreversible names {tool!r}, which is no tool.{near}")
        if faults:
            raise ConfigError(faults)

    @classmethod
    def load(
        cls, name_or_path: str, args: Mapping[str, Any] | None = None, *, python: str | None = None, **options: Any
    ) -> EnvSpec:
        """Return the environment of that name.

        Args:
            name_or_path: A short name of the catalog, `module:Class`, `path/to/file.py:Class`, or one that is adapted,
                such as `gym:ID` (`envs.adapters`).
            args: Keyword arguments of the environment's constructor.
            python: The interpreter that has what it needs; None = this one.
            options: `sandboxed`, `max_observation_chars`, `isolated`, `most_open`, `judge`; see the class.

        Raises:
            ConfigError: There is no such environment, or it does not meet the contract.
        """
        if python is not None:
            return cls._elsewhere(python, name_or_path, dict(args or {}), options)
        from offline_agent.envs.adapters import environment_class

        found = environment_class(name_or_path, args)
        spec = cls(found, args, name=None if ":" in name_or_path else name_or_path, **options)
        spec.path = name_or_path
        return spec

    @classmethod
    def _elsewhere(cls, python: str, path: str, args: dict[str, Any], options: Mapping[str, Any]) -> EnvSpec:
        """Return an environment of another interpreter; it is isolated."""
        from offline_agent.envs.isolation.client import EpisodeServer
        from offline_agent.envs.isolation.remote import stand_in

        inside = {name: options[name] for name in ("sandboxed", "max_observation_chars") if name in options}
        server, facts = EpisodeServer.of_interpreter(python, path, args, inside)
        spec = cls(stand_in(facts, server), {}, **{**options, "isolated": True})
        spec.path, spec.args, spec.python, spec._server = path, args, python, server
        spec.tools, spec.turn_rewards = ToolSet.from_json(facts["tools"]), facts["turn_rewards"]
        spec.fingerprints = facts["fingerprints"]
        return spec

    @property
    def one_thread(self) -> bool:
        """Whether one thread opens, steps, copies and closes an environment and its copies.

        A class says `one_thread = False` where any thread may; an isolated one is called by its own process's thread.
        """
        return self._one_thread and not self.isolated

    @property
    def adapted(self) -> bool:
        """Whether the class is an adapter's, which its user cannot change."""
        point = catalog.entry_point("env", self.path)
        return point is not None and catalog.is_adapter(point)

    def mend(self, author: str, user: str = "") -> str:
        """Return what the author of a class can do, or the user of an adapter, who cannot change its class."""
        return user if self.adapted else author

    @property
    def identity(self) -> dict[str, Any]:
        """JSON-serialisable facts for the manifest."""
        path = self.path if self.adapted else f"{self.cls.__module__}:{self.cls.__qualname__}"
        judge = {} if self.judge is None else {"judge": self.judge.identity}
        sandbox = {} if self.sandbox is None else {"sandbox": self.sandbox}
        python = {} if self.python is None else {"python": self.python}
        named = {"name": self.name, "version": self.version, "class": path, "args": self.args}
        point = catalog.entry_point("env", self.path)
        if point is not None:
            named["distribution"] = catalog.distribution(point)
        return {**named, **python, **judge, **sandbox}

    @property
    def sandbox(self) -> str | None:
        """Level of the sandbox that its code runs in; None where neither class nor judge runs what a policy wrote."""
        judged = self.judge is not None and self.judge.name == "unit_tests" and "run" not in self.judge.args
        if not (judged or self.runs_code):
            return None
        from offline_agent.sandbox import shared

        return shared().level

    def keep_in(self, run: Path) -> None:
        """Keep what the judge is answered in a run directory, where it asks a model."""
        if self.judge is not None:
            self.judge.keep_in(run / "judge")

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
        yield from self._listed(listing, split, {k: v for k, v in self.args.items() if k in taken})

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
        episode = self._open()
        return episode if self.judge is None else JudgedEpisode(self, episode, self.judge)

    def _open(self) -> Episode:
        if self.isolated:
            from offline_agent.envs.isolation.client import EpisodeServer

            with self._starting:
                if self._server is None:
                    self._server = EpisodeServer(self)
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

    def _listed(self, listing: Callable[..., Any], split: str, args: Mapping[str, Any]) -> Iterator[Any]:
        try:
            yield from listing(split, **args)
        except (ConfigError, EnvironmentFault, GeneratorExit):  # the last: the caller takes no more tasks
            raise
        except BaseException as error:
            if ends_the_run(error):
                raise
            raise EnvironmentFault(f"{self.name}: tasks({split!r}) raised {in_words(error)}") from error


def _class_faults(cls: type) -> Iterator[str]:
    most = getattr(cls, "max_steps", None)
    if most is not None and (type(most) is not int or most < 1):
        yield (
            f"environment {cls.__name__}: its max_steps is {most!r}, allowed: None or a whole number from 1, the "
            "actions of its longest episode; call it otherwise where it means something else"
        )
    reply = inspect.getattr_static(cls, "_reply", None)
    if inspect.isfunction(reply):
        try:
            inspect.signature(reply).bind(None, text="")
        except TypeError:
            yield (
                f"environment {cls.__name__}: got _reply{inspect.signature(reply)}, allowed: _reply(self, text) -> str "
                "| None, the scripted user's next turn after an answer without a call; call it otherwise where it "
                "means something else"
            )
    if not inspect.isfunction(inspect.getattr_static(cls, "reset", None)):
        yield f"environment {cls.__name__} has no method reset(self, ...) -> str; that is how a task starts"
    if inspect.isfunction(inspect.getattr_static(cls, "tasks", None)):
        yield f"environment {cls.__name__}: tasks must be a @classmethod; as a plain method TRL takes it for a tool"
