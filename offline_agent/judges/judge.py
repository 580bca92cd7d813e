"""Judges: callables that give a trajectory its verdict, made from a configuration's `judge` section.

A judge is called as `judge(trajectory)` and returns a `Verdict`, a score in [0, 1] (1.0 = success), a bool, or None
where it cannot judge. It may be a function (its first parameter is the trajectory, the others are arguments of the
configuration), a class (the arguments are its constructor's, its instances are called), or a verifier
(`verifiers.verifier`), whose parameters are taken from the trajectory and from the task. docs/verifiers.md has the
contract.
"""

from __future__ import annotations

import inspect
import json
import math
import typing
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from offline_agent import catalog, parameters
from offline_agent.errors import ConfigError, did_you_mean, ends_the_run, in_words
from offline_agent.records import Task, Trajectory, Verdict

ENVIRONMENT = "environment"
"""Name of the judge that repeats what the environment's own `get_reward` says; the default of every command."""

AnyJudge = Callable[[Trajectory], Verdict]
"""A judge, or what stands for one."""

SOURCES = ("answer", "call.ARGUMENT", "observation", "evidence.KEY")


class Judge:
    """A scorer of trajectories that always answers with a verdict: what it raises becomes a verdict without a score.

    Args:
        function: Called with a trajectory; see the module's docstring.
        name: As the configuration names it.
        args: The arguments it was given, for the manifest.

    Attributes:
        version: The callable's `version`; "1" where it has none. Part of every verdict.
        deterministic: The same trajectory always gets the same verdict: the callable's `deterministic`, else True.
        costly: A verdict costs money or much time, as that of a model does: the callable's `costly`, else False.
    """

    def __init__(self, function: Callable[[Trajectory], Any], name: str, args: Mapping[str, Any]) -> None:
        self._function = function
        self.name = name
        self.args = dict(args)
        plain = function.func if isinstance(function, partial) else function
        self.version = str(getattr(plain, "version", "1"))
        self.deterministic = bool(getattr(plain, "deterministic", True))
        self.costly = bool(getattr(plain, "costly", False))

    @property
    def identity(self) -> dict[str, Any]:
        """JSON-serialisable facts for the manifest."""
        return {"name": self.name, "version": self.version, "args": self.args}

    def __call__(self, trajectory: Trajectory) -> Verdict:
        """Return the verdict on a trajectory.

        Args:
            trajectory: The episode; its verdict is the environment's own. Perhaps without a step, and not
                `terminated` where the state in the middle of an episode is judged.
        """
        try:
            return as_verdict(self._function(trajectory), self.name, self.version, "the judge")
        except BaseException as error:
            if ends_the_run(error):
                raise
            return Verdict(None, None, self.name, self.version, error=f"the judge raised {in_words(error)}")

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of a task that the judge is known to read: they hold what is right."""
        return tuple(getattr(self._function, "reads", ()))

    def keep_in(self, folder: Path) -> None:
        """Keep what a judge with a cache is told in a folder of the run, where its arguments name no other place."""
        keep = getattr(self._function, "keep_in", None)
        if keep is not None:
            keep(folder)

    def check(self, task: Task) -> None:
        """Raise ConfigError where the judge needs something that a task does not have."""
        check = getattr(self._function, "check", None)
        if check is not None:
            check(task)


def as_verdict(value: Any, name: str, version: str, who: str) -> Verdict:
    """Return a scorer's result as a verdict.

    Args:
        value: A verdict, a score in [0, 1], a bool, or None.
        name: The scorer's name; a verdict keeps its own.
        version: The scorer's version, likewise.
        who: Name of the judge that returned the value, for errors.

    Raises:
        ValueError, TypeError: The value is none of these.
    """
    if isinstance(value, Verdict):
        evidence = json.loads(json.dumps(dict(value.evidence), default=str))
        score = None if value.score is None else float(value.score)  # it may be NumPy's
        success = None if value.success is None else bool(value.success)
        return Verdict(score, success, value.verifier, value.version, evidence, value.error)
    if value is None:
        return Verdict(None, None, name, version, error=f"{who} returned None: it cannot be judged")
    score = float(value)
    if not math.isfinite(score) or not 0.0 <= score <= 1.0:
        return Verdict(None, None, name, version, error=f"{who} returned {score!r}; it must be in [0, 1]")
    return Verdict(score, score == 1.0, name, version)


def make_judge(name: str, args: Mapping[str, Any], key: str = "judge") -> Judge | None:
    """Return the judge of that name; None for `environment`, whose verdicts nothing replaces.

    Args:
        name: A short name of the catalog, `module:callable`, or `path/to/file.py:callable`.
        args: Its arguments.
        key: The configuration key, for messages.

    Raises:
        ConfigError: There is no such judge, or it does not take the arguments: every fault found.
    """
    if name == ENVIRONMENT and not args:
        return None
    target = catalog.resolve("judge", name, key)
    if not callable(target):
        raise ConfigError(f"{key}: {name} is a {type(target).__name__}; a judge is called as judge(trajectory)")
    function: Any
    if hasattr(target, "verifier"):
        function = AnswerJudge(target, args, key)
    elif inspect.isclass(target):
        function = target(**parameters.keywords(key, target, args, {}))
        if not callable(function):
            raise ConfigError(f"{key}: instances of {name} cannot be called; give the class __call__(self, trajectory)")
    else:
        first = _first_parameter(target)
        if first is None:
            raise ConfigError(f"{key}: {name} takes no argument; a judge is called as judge(trajectory)")
        faults = parameters.argument_faults(key, target, args, (first,))
        if faults:
            raise ConfigError(faults)
        function = partial(target, **args) if args else target
    return Judge(function, name, args)


def _first_parameter(target: Callable[..., Any]) -> str | None:
    try:
        found = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):  # a callable of C, which says nothing of its parameters
        return ""
    kinds = inspect.Parameter
    takes = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD, kinds.VAR_POSITIONAL)
    return found[0].name if found and found[0].kind in takes else None


class AnswerJudge:
    """Calls a verifier with what a trajectory produced and what its task asks for.

    The verifier's first parameter is what was produced. Each other parameter is the argument that the configuration
    gives, else the task's column of its name (or as `columns` says), else the parameter's default.

    Args:
        verify: A function that `verifiers.verifier` made.
        args: Arguments of the verifier, and two of this class: `produced` says where what is judged stands (`answer`:
            the final answer, "" without one; `call.ARGUMENT`: that argument of the last call that has it;
            `observation`: the last one, as JSON where it is JSON; `evidence.KEY`: of the environment's own verdict),
            `columns` maps parameters to columns of the task.
        key: The configuration section, for messages.

    Raises:
        ConfigError: An argument that the verifier does not take, or a value that is not allowed: every fault.
    """

    def __init__(self, verify: Callable[..., Verdict], args: Mapping[str, Any], key: str) -> None:
        self._verify = verify
        self._key = key
        self.version = str(getattr(verify, "version", "1"))
        self.deterministic = bool(getattr(verify, "deterministic", True))
        self.costly = bool(getattr(verify, "costly", False))
        given = dict(args)
        self.produced = given.pop("produced", "answer")
        self.columns = given.pop("columns", {})
        first, *rest = inspect.signature(verify).parameters.values()
        # A parameter without a default may come from the task; whether it does is checked against the first one.
        needed = (parameter.name for parameter in rest if _needed(parameter, given))
        faults = parameters.argument_faults(key, verify, given, (first.name, *needed))
        faults += self._own_faults([parameter.name for parameter in rest])
        if faults:
            raise ConfigError(faults)
        self._given = {name: _loaded(f"{key}.{name}", verify, name, value) for name, value in given.items()}
        self._wanted = {p.name: p.default is p.empty for p in rest if p.name not in given}

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of a task that are taken."""
        return tuple(self._column(name) for name in self._wanted)

    def __call__(self, trajectory: Trajectory) -> Verdict:
        """Return the verifier's verdict; raises LookupError where the task has not what it needs."""
        columns = trajectory.task.args
        for name, needed in self._wanted.items():
            if needed and self._column(name) not in columns:
                raise LookupError(f"task {trajectory.task.task_id} has no column {self._column(name)!r}")
        taken = {name: columns[self._column(name)] for name in self._wanted if self._column(name) in columns}
        return self._verify(produced(trajectory, self.produced), **taken, **self._given)

    def check(self, task: Task) -> None:
        """Raise ConfigError where a task lacks a column that the verifier needs."""
        faults = [
            f"{self._key}.columns: {getattr(self._verify, 'verifier', 'the verifier')} needs {name!r}, and task "
            f"{task.task_id} has no column {self._column(name)!r}, only {', '.join(task.args) or 'none'}; set "
            f"{self._key}.columns={{{name}: COLUMN}} or {self._key}.{name}=...{did_you_mean(name, task.args)}"
            for name, needed in self._wanted.items()
            if (needed or name in self.columns) and self._column(name) not in task.args
        ]
        if faults:
            raise ConfigError(faults)

    def _column(self, name: str) -> str:
        return str(self.columns.get(name, name))

    def _own_faults(self, names: list[str]) -> list[str]:
        head, _, tail = str(self.produced).partition(".")
        faults = []
        if not (self.produced in ("answer", "observation") or (head in ("call", "evidence") and tail)):
            near = did_you_mean(str(self.produced), SOURCES)
            faults.append(f"{self._key}.produced: got {self.produced!r}, allowed: {', '.join(SOURCES)}.{near}")
        if not isinstance(self.columns, Mapping):
            faults.append(f"{self._key}.columns: got {self.columns!r}, allowed: {{parameter: column}}")
            self.columns = {}
        for name in self.columns:
            if name not in names:
                allowed = ", ".join(names) or "none"
                faults.append(f"{self._key}.columns.{name}: no such parameter; allowed: {allowed}."
                              f"{did_you_mean(name, names)}")  # fmt: skip
        return faults


def produced(trajectory: Trajectory, source: str) -> Any:
    """Return the answer that a trajectory produced; `AnswerJudge` lists the sources. None where there is no answer."""
    head, _, name = source.partition(".")
    if head == "answer":
        last = trajectory.steps[-1].action if trajectory.steps else None
        return last.text if last is not None and last.call is None and last.fault is None else ""
    if head == "call":
        calls = [step.action.call for step in trajectory.steps if step.action.call is not None]
        return next((call.arguments[name] for call in reversed(calls) if name in call.arguments), "")
    if head == "evidence":
        return None if trajectory.verdict is None else trajectory.verdict.evidence.get(name)
    text = trajectory.context.observation
    if text is None and trajectory.context.parent is not None:  # an answer ended the episode
        text = trajectory.context.parent.observation
    try:
        return json.loads(text or "")
    except ValueError:
        return text


def _needed(parameter: inspect.Parameter, given: Mapping[str, Any]) -> bool:
    return parameter.name not in given and parameter.default is parameter.empty


def _loaded(key: str, verify: Callable[..., Any], name: str, value: Any) -> Any:
    """Return the callable that `module:callable` names, where the parameter takes a callable; else the value."""
    if not isinstance(value, str):
        return value
    try:
        kind = typing.get_type_hints(inspect.unwrap(verify)).get(name)
    except Exception:  # a name for type checkers alone, or a local one
        return value
    return catalog.load(key, value) if "Callable" in str(kind) else value
