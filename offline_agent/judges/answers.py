"""Verifiers as judges: their parameters taken from a trajectory, its task and the configuration."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any

from offline_agent import catalog
from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.records import Task, Trajectory, Verdict

SOURCES = ("answer", "call.ARGUMENT", "observation", "evidence.KEY")


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
        given = dict(args)
        self.produced = given.pop("produced", "answer")
        self.columns = given.pop("columns", {})
        first, *rest = inspect.signature(verify).parameters.values()
        # A parameter without a default may come from the task; whether it does is checked against the first one.
        faults = catalog.argument_faults(key, verify, given, (first.name, *(p.name for p in rest if _needed(p, given))))
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
