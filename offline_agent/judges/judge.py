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
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from offline_agent import catalog
from offline_agent.errors import ConfigError, ends_the_run, in_words
from offline_agent.judges.answers import AnswerJudge
from offline_agent.judges.ranking import Compare
from offline_agent.records import Task, Trajectory, Verdict

ENVIRONMENT = "environment"
"""Name of the judge that repeats what the environment's own `get_reward` says; the default of every command."""


class Judge:
    """A scorer of trajectories that always answers with a verdict: what it raises becomes a verdict without a score.

    Args:
        function: Called with a trajectory; see the module's docstring.
        name: As the configuration names it.
        args: The arguments it was given, for the manifest.

    Attributes:
        version: The callable's `version`; "1" where it has none. Part of every verdict.
        deterministic: The same trajectory always gets the same verdict: the callable's `deterministic`, else True.
        compare: The callable's method that compares two attempts (`judges.ranking`); None where it has none.
        costly: A verdict costs money or much time, as that of a model does: the callable's `costly`, else False.
    """

    def __init__(self, function: Callable[[Trajectory], Any], name: str, args: Mapping[str, Any]) -> None:
        self._function = function
        self.name = name
        self.args = dict(args)
        told = function.func if isinstance(function, partial) else function
        self.version = str(getattr(told, "version", "1"))
        self.deterministic = bool(getattr(told, "deterministic", True))
        self.compare: Compare | None = getattr(told, "compare", None)
        self.costly = bool(getattr(told, "costly", False))

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
        if not callable(self._function):
            why = "the judge compares two attempts at a task; it cannot judge one alone"
            return Verdict(None, None, self.name, self.version, error=why)
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
        return Verdict(value.score, value.success, value.verifier, value.version, evidence, value.error)
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
        function = target(**catalog.keywords(key, target, args, {}))
        if not callable(function) and not callable(getattr(function, "compare", None)):
            raise ConfigError(
                f"{key}: instances of {name} cannot be called; give the class __call__(self, trajectory), or "
                "compare(self, first, second)"
            )
    else:
        first = _first_parameter(target)
        if first is None:
            raise ConfigError(f"{key}: {name} takes no argument; a judge is called as judge(trajectory)")
        faults = catalog.argument_faults(key, target, args, (first,))
        if faults:
            raise ConfigError(faults)
        function = partial(target, **args) if args else target
    return Judge(function, name, args)


def _first_parameter(target: Callable[..., Any]) -> str | None:
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):  # a callable of C, which says nothing of its parameters
        return ""
    kinds = inspect.Parameter
    takes = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD, kinds.VAR_POSITIONAL)
    return parameters[0].name if parameters and parameters[0].kind in takes else None
