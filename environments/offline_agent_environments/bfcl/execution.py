"""Execution of calls on the benchmark's tool objects, and of the ground truth."""

from __future__ import annotations

import contextlib
import copy
import decimal
import importlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from offline_agent_environments.bfcl import data

_PACKAGE = "bfcl_eval.eval_checker.multi_turn_eval"
# A long-context tool of this class writes into a table of its module before it returns it.
_LOCKED = "VehicleControlAPI"
_LOCK = threading.Lock()
_NO_LOCK = contextlib.nullcontext()
# Digits; with 10^9 of them the decimal module blocks the whole process for hours.
_MAX_PRECISION = 1_000
_DIGITS = {"precision", "decimal_places"}
_MAX_NUMBER = 10**15


class CallFailed(Exception):
    """A tool raised; the message is the tool's own."""


class ToolInstances:
    """One instance of each tool class of a task, and the functions by name.

    Args:
        task: The task.
    """

    def __init__(self, task: data.Entry) -> None:
        self.instances: dict[str, Any] = {}
        self._owner: dict[str, str] = {}
        for name in task.classes:
            module = importlib.import_module(f"{_PACKAGE}.func_source_code.{data.CLASSES[name]}")
            instance = getattr(module, name)()
            if hasattr(instance, "_load_scenario"):
                config = copy.deepcopy(task.config.get(name, {}))
                instance._load_scenario(config, long_context=task.category == "long_context")
            self.instances[name] = instance
            self._owner.update(dict.fromkeys(data.documents()[name], name))

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a function and return its result as the benchmark writes it.

        Raises:
            CallFailed: The function raised.
        """
        owner = self._owner[name]
        function = getattr(self.instances[owner], name)
        # MathAPI sets the decimal precision of the thread.
        with _LOCK if owner == _LOCKED else _NO_LOCK, decimal.localcontext():
            try:
                return _text(function(**_bounded(name, arguments)))
            except Exception as error:
                raise CallFailed(str(error) or type(error).__name__) from error


def _bounded(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the arguments with which the function ends in bounded time: large integers can keep it busy."""
    for digits in _DIGITS & arguments.keys():
        if not abs(arguments[digits]) <= _MAX_PRECISION:
            got = repr(arguments[digits])[:20]
            raise ValueError(f"{digits} must be from {-_MAX_PRECISION} to {_MAX_PRECISION}, got {got}")
    _check_sizes(arguments)
    if name == "power":
        return {key: float(value) for key, value in arguments.items()}
    return copy.deepcopy(dict(arguments))


def _check_sizes(value: Any) -> None:
    if isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            _check_sizes(inner)
    elif isinstance(value, int | float) and not abs(value) <= _MAX_NUMBER:
        raise ValueError(f"numbers must be from {-_MAX_NUMBER:.0e} to {_MAX_NUMBER:.0e}")


def _text(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


@dataclass(frozen=True)
class Truth:
    """States and results of the ground truth.

    Attributes:
        states: Per turn, the instances at its end.
        results: Per turn, the results of the possible calls (see `data.possible`).
        changes: Per turn, whether it changed the state at all.
    """

    states: tuple[Mapping[str, Any], ...]
    results: tuple[tuple[str, ...], ...]
    changes: tuple[bool, ...]


@lru_cache(maxsize=128)
def truth(task_id: str) -> Truth:
    """Return the states and results of a task's ground truth."""
    task, tools = data.entry(task_id), data.toolset(task_id)
    live = ToolInstances(task)
    states: list[Mapping[str, Any]] = []
    results: list[tuple[str, ...]] = []
    changes: list[bool] = []
    before: Mapping[str, Any] = copy.deepcopy(live.instances)
    for turn, possible in zip(task.truth, data.possible(task_id), strict=True):
        said = []
        for call in turn:
            arguments, _, _ = tools.validate(call)
            try:
                result = live.call(call.name, call.arguments if arguments is None else arguments)
            except CallFailed as error:
                result = f"Error during execution: {error}"
            if call in possible:
                said.append(result)
        states.append(copy.deepcopy(live.instances))
        results.append(tuple(said))
        changes.append(bool(differences(before, states[-1])))
        before = states[-1]
    return Truth(tuple(states), tuple(results), tuple(changes))


def differences(got: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return `Class.attribute` → its value and the expected one, by the benchmark's own state check."""
    checker = importlib.import_module(f"{_PACKAGE}.multi_turn_checker")
    out: dict[str, Any] = {}
    for name in expected:
        result = checker.state_checker({name: got[name]}, {name: expected[name]})
        if not result["valid"]:
            for attribute, pair in result["details"]["differences"].items():
                out[f"{name}.{attribute}"] = _apart(repr(pair["model"]), repr(pair["ground_truth"]))
    return out


def missing(got: Sequence[str], expected: Sequence[str]) -> list[str]:
    """Return the expected results that are not among those got, each counted once (the benchmark's response check)."""
    left = list(got)
    out = []
    for item in expected:
        if item in left:
            left.remove(item)
        else:
            out.append(item)
    return out


def _apart(got: str, expected: str, width: int = 120) -> dict[str, str]:
    """Return the two texts from shortly before their first difference."""
    same = next(
        (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), min(len(got), len(expected))
    )
    start = max(0, same - width // 3)
    return {
        name: f"{'...' if start else ''}{text[start : start + width]}{'...' if len(text) > start + width else ''}"
        for name, text in (("got", got), ("expected", expected))
    }
