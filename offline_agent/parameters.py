"""Parameters of classes and functions that a configuration names: faults of the arguments that it gives them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from offline_agent.errors import ConfigError, did_you_mean


def argument_faults(
    key: str, target: Callable[..., Any], given: Mapping[str, Any], skip: tuple[str, ...] = ()
) -> list[str]:
    """Return one line for each argument that `target` does not take, takes as another type, or needs and is not given.

    Args:
        key: The configuration section the arguments are from, for messages.
        target: A class or function.
        given: Keyword arguments the user wrote.
        skip: Parameters that the program itself will give.
    """
    named, open_ended = _parameters(target)
    faults, name = list[str](), getattr(target, "__name__", str(target))
    offered = [parameter for parameter in named if parameter not in skip]
    for argument, value in given.items():
        if argument not in offered and not open_ended:
            allowed, near = ", ".join(offered) or "none", did_you_mean(argument, offered)
            faults.append(f"{key}.{argument}: {name} takes no such argument; allowed: {allowed}.{near}")
        elif argument in offered and (fault := _misfit(target, argument, value)):
            faults.append(f"{key}.{argument}: got {value!r}, {fault}")
    for argument, needed in named.items():
        if needed and argument not in given and argument not in skip:
            faults.append(f"{key}.{argument}: {name} needs this; set {key}.{argument}=...")
    return faults


def _misfit(target: Callable[..., Any], argument: str, value: Any) -> str:
    """Return the type that a parameter takes, and how to mend the value, where the value is of another type."""
    parameter = inspect.signature(target).parameters[argument]
    kind, default = parameter.annotation, parameter.default
    if isinstance(kind, str):
        function = inspect.unwrap(target.__init__ if isinstance(target, type) else target)  # type: ignore[misc]
        try:
            kind = eval(kind, getattr(function, "__globals__", {}))  # as typing.get_type_hints, one at a time
        except Exception:  # a name for type checkers alone, or a local one
            return ""
    if kind is parameter.empty or value is default or _fits(value, kind):
        return ""
    return f"allowed: {_in_words(kind)}" + ("." if default is parameter.empty else f"; leave it out for {default!r}.")


def accepted(target: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that `target` has parameters for."""
    named, open_ended = _parameters(target)
    return {name: value for name, value in arguments.items() if open_ended or name in named}


def _parameters(target: Callable[..., Any]) -> tuple[dict[str, bool], bool]:
    """Return {name: has no default} of the named parameters, and whether any other name is accepted."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return {}, True
    named = {p.name: p.default is p.empty for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def keywords(
    key: str,
    target: Callable[..., Any],
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments to construct a plugged part with.

    Args:
        key: The configuration section, for messages.
        target: The class.
        given: Arguments of the user (`Plugged.given`); the class must take all of them.
        defaults: Arguments with their default (`Plugged.defaults`); passed if the class has the parameter.
        own: Arguments of the program, e.g. `seed`; passed if the class has the parameter.

    Raises:
        ConfigError: With every argument that the class does not take, or needs and does not get.
    """
    offered = {**accepted(target, defaults), **accepted(target, own or {})}
    faults = argument_faults(key, target, given, tuple(set(offered) - set(given)))
    if faults:
        raise ConfigError(faults)
    return {**offered, **given}


# -- values and annotations --------------------------------------------------------------------------------------------

_WORDS: dict[Any, str] = {
    bool: "true | false", int: "integer", float: "number", str: "text (in quotes where it looks like something else)",
    types.NoneType: "null", None: "null",
}  # fmt: skip
_LISTS = {list, tuple, Sequence, Collection, Iterable}
_DICTS = {dict, Mapping}


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value fits an annotation; True for a class, whose values no configuration can write."""
    origin, inside = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in inside)
    if origin is Literal:
        return any(value == option and type(value) is type(option) for option in inside)
    if origin in (None, types.NoneType):
        return value is None
    if origin is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin in (bool, str):
        return isinstance(value, origin)
    if origin in _LISTS:
        items = inside[:1] if len(inside) == 1 or (len(inside) == 2 and inside[1] is Ellipsis) else ()
        return isinstance(value, list | tuple) and all(_fits(one, item) for item in items for one in value)
    if origin in _DICTS:
        return isinstance(value, Mapping)
    return True


def _in_words(kind: Any) -> str:
    """Return the allowed values of an annotation in words."""
    origin, inside = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_in_words(option) for option in inside)
    if origin is Literal:
        return " | ".join(map(str, inside))
    if origin in _LISTS:
        return f"list of {_in_words(inside[0])}" if inside else "list"
    if origin in _DICTS:
        return "keys and values"
    return _WORDS.get(origin, getattr(origin, "__name__", str(origin)))
