"""Named predicates over the state of an episode, with typed arguments: what a planner may choose subgoals from.

A predicate is a function whose first parameter is a trajectory (an episode, or the beginning of one) and which returns
whether it holds at its end. Its other parameters have type hints, its docstring says in a sentence what it means.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from offline_agent import catalog
from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.records import Trajectory

_STRICT = ConfigDict(extra="forbid", strict=True)


class Refused(Exception):
    """A proposed subgoal is no call of a known predicate with valid arguments."""


@dataclass(frozen=True)
class Predicate:
    """A predicate that subgoals may be made of.

    Attributes:
        name: The function's.
        about: The first paragraph of its docstring.
        function: Called with a trajectory and the arguments.
        form: Of its arguments.
    """

    name: str
    about: str
    function: Callable[..., Any]
    form: type[BaseModel]

    def schema(self) -> dict[str, Any]:
        """Return name, meaning and JSON schema of the arguments, as a planner is shown them."""
        schema = self.form.model_json_schema()
        parameters = {
            name: {k: v for k, v in each.items() if k != "title"} for name, each in schema.get("properties", {}).items()
        }
        shown = {"name": self.name, "about": self.about, "arguments": parameters}
        return {**shown, "$defs": schema["$defs"]} if "$defs" in schema else shown

    def of(self, arguments: Mapping[str, Any]) -> tuple[str, Callable[[Trajectory], bool]]:
        """Return the subgoal's text, `name(argument=value, …)`, and its check.

        Raises:
            Refused: The arguments are not of its form.
        """
        try:
            given = self.form.model_validate(dict(arguments)).model_dump()
        except ValidationError as error:
            first = error.errors()[0]
            raise Refused(f"{'.'.join(map(str, first['loc'])) or 'arguments'}: {first['msg']}") from error
        text = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items())
        return f"{self.name}({text})", lambda trajectory: bool(self.function(trajectory, **given))


def load_predicates(key: str, path: str) -> dict[str, Predicate]:
    """Return the predicates of a module, by name.

    Args:
        key: The configuration key, for messages.
        path: `module:NAME` of a list or tuple of functions.

    Raises:
        ConfigError: There are none, or one of them has no docstring or an untyped parameter: every fault.
    """
    found = catalog.load(key, path)
    functions = list(found) if isinstance(found, Iterable) and not isinstance(found, str | bytes | Mapping) else []
    if not functions or not all(inspect.isfunction(one) for one in functions):
        raise ConfigError(f"{key}: {path} is a {type(found).__name__}; allowed: a list of at least one function "
                          "(trajectory, argument: type, …) -> bool")  # fmt: skip
    faults: list[str] = []
    made: dict[str, Predicate] = {}
    for one in functions:
        try:
            made[one.__name__] = _predicate(key, one)
        except ConfigError as error:
            faults += error.faults
    if len({one.__name__ for one in functions}) < len(functions):
        faults.append(f"{key}: {path} has two predicates of one name")
    if faults:
        raise ConfigError(faults)
    return made


def call_of(predicates: Mapping[str, Predicate], name: str) -> Predicate:
    """Return the predicate of that name; raises Refused."""
    if name not in predicates:
        raise Refused(f"there is no predicate {name!r}.{did_you_mean(name, predicates)}")
    return predicates[name]


def _predicate(key: str, function: Callable[..., Any]) -> Predicate:
    name, faults = function.__name__, []
    about = inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    if not about:
        faults.append(f"{key}: {name} has no docstring; the planner is told by it what the predicate means")
    parameters = list(inspect.signature(function).parameters.values())
    kinds = inspect.Parameter
    if not parameters or any(p.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD, kinds.POSITIONAL_ONLY)
                             for p in parameters[1:]):  # fmt: skip
        faults.append(f"{key}: {name}{inspect.signature(function)}, allowed: (trajectory, argument: type, …)")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # a name that is not defined there
        raise ConfigError([*faults, f"{key}: the type hints of {name} cannot be read: {error}"]) from error
    untyped = [p.name for p in parameters[1:] if p.name not in hints]
    if untyped:
        faults.append(f"{key}: {name} says no type of {', '.join(untyped)}; write e.g. {untyped[0]}: str")
    if faults:
        raise ConfigError(faults)
    fields: dict[str, Any] = {
        p.name: (hints[p.name], ... if p.default is p.empty else p.default) for p in parameters[1:]
    }
    try:
        form = create_model(name, __config__=_STRICT, **fields)
        form.model_json_schema()
    except Exception as error:  # pydantic raises errors of several classes
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{key}: the arguments of {name} cannot be written as JSON: {reason}") from error
    return Predicate(name, about, function, form)
