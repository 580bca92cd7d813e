"""Whether a value from a configuration fits what a parameter is annotated with, and what that is in words."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

_WORDS: dict[Any, str] = {
    bool: "true | false", int: "integer", float: "number", str: "text (in quotes where it looks like something else)",
    types.NoneType: "null", None: "null",
}  # fmt: skip
_LISTS = {list, tuple, Sequence, Collection, Iterable}
_DICTS = {dict, Mapping}


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value may be given; True where the kind is none that a configuration can write (a class)."""
    origin, inside = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in inside)
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
        return isinstance(value, list | tuple) and all(fits(one, item) for item in items for one in value)
    if origin in _DICTS:
        return isinstance(value, Mapping)
    return True


def in_words(kind: Any) -> str:
    """Return what may be given."""
    origin, inside = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(in_words(option) for option in inside)
    if origin is Literal:
        return " | ".join(map(str, inside))
    if origin in _LISTS:
        return f"list of {in_words(inside[0])}" if inside else "list"
    if origin in _DICTS:
        return "keys and values"
    return _WORDS.get(origin, getattr(origin, "__name__", str(origin)))
