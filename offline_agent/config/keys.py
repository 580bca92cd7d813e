"""The keys of a configuration: paths, allowed values in words, defaults and meaning, read from pydantic models."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from offline_agent.sections import MOST, Plugged


class Key(NamedTuple):
    """One key.

    Attributes:
        path: Dotted path, e.g. `search.simulations`.
        allowed: Allowed values in words.
        default: The default, as it is typed.
        about: Its meaning.
        free: It may differ when a run is resumed.
        text: Its values are texts.
        grows: Commands whose runs may be resumed with more of it.
    """

    path: str
    allowed: str
    default: str
    about: str
    free: bool
    text: bool
    grows: tuple[str, ...] = ()


def keys(model: type[BaseModel], prefix: str = "") -> list[Key]:
    """Return every key of a model, in order; arguments of a plugged section are `<section>.<argument>`."""
    return list(_keys(model, prefix))


def free_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the keys that may differ when a run is resumed."""
    return tuple(entry.path for entry in keys(model) if entry.free)


def growing_keys(model: type[BaseModel], command: str) -> tuple[str, ...]:
    """Return the keys of which a run of a command may be resumed with more."""
    return tuple(entry.path for entry in keys(model) if command in entry.grows)


def section_of(field: FieldInfo | None) -> type[BaseModel] | None:
    """Return the model of a field that is a section; None where it is a key."""
    annotation = None if field is None else field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _keys(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        inner = section_of(field)
        if inner is not None:
            yield from _keys(inner, f"{prefix}{name}.")
            continue
        plugged = name == "name" and issubclass(model, Plugged)
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        yield Key(
            prefix.rstrip(".") if plugged else prefix + name,
            _allowed(field),
            _typed(field.get_default()),
            field.description or "",
            bool(extra.get("free")),
            str in _options(field.annotation),
            tuple(extra.get("grows", ())),  # type: ignore[arg-type]
        )
    if model.model_config.get("extra") == "allow":
        yield Key(f"{prefix}<argument>", "any", "", getattr(model, "argument_note", ""), False, False)


def _options(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _allowed(field: FieldInfo) -> str:
    """Return the values that a key allows, in words."""
    words = []
    for option in _options(field.annotation):
        if option is type(None):
            words.append("null")
        elif get_origin(option) is Literal:
            words.append(" | ".join(get_args(option)))
        elif get_origin(option) is tuple:
            item = get_args(option)[0]
            words.append("list of " + (" | ".join(get_args(item)) or {str: "texts", float: "numbers"}[item]))
        else:
            words.append({int: "integer", float: "number", bool: "true | false", str: "text"}[option] + _limits(field))
    return " or ".join(words)


def _limits(field: FieldInfo) -> str:
    parts = []
    for limit in field.metadata:
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
            bound = getattr(limit, name, None)
            if bound is not None and bound != MOST:  # the general bound is stated once, in docs/configuration.md
                parts.append(f" {sign} {bound}")
    return " and".join(parts)


def _typed(value: Any) -> str:
    """Return a default as a user types it on the command line."""
    if isinstance(value, tuple):
        return "[" + ",".join(map(str, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
