"""JSON schemas of tools from type hints and docstrings, equal to those of transformers and TRL."""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Union

Schema = dict[str, Any]

_PLAIN: dict[Any, Schema] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    dict: {"type": "object"},
    object: {"type": "object"},
}
_BARE: dict[Any, str] = {list: "list[str]", tuple: "tuple[int, int]"}
_SECTION = re.compile(r"Args:|Returns:|Raises:")
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


class SchemaFault(Exception):
    """A function that no schema can describe; the message says which part, and how to change it."""


def tool_functions(cls: type) -> dict[str, Callable[..., Any]]:
    """Return the class's tools by name, sorted: the same as TRL 1.16's `environment_factory` finds.

    These are the public functions of the class, inherited and static ones included, except `reset` and `get_reward`.
    Class methods, properties, attributes and names with a leading underscore are no tools.
    """
    found = inspect.getmembers(cls, inspect.isfunction)
    return {name: f for name, f in found if not name.startswith("_") and name not in ("reset", "get_reward")}


def function_schema(function: Callable[..., Any]) -> Schema:
    """Return `{"type": "function", "function": {...}}`, equal to `transformers.utils.get_json_schema(function)`.

    Raises:
        SchemaFault: A hint, the docstring, or a parameter's description is missing or cannot be used: every fault.
    """
    doc = inspect.getdoc(function)
    faults = [] if doc else ["it has no docstring; the policy reads the docstring, so say what the tool does"]
    description, documented, returns = parse_docstring(doc or "")
    parameters = list(_parameters(function, faults))
    hints: dict[str, Any] = {}
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:
        faults.append(f"its type hints cannot be resolved ({type(error).__name__}: {error})")
        parameters = []
    properties: dict[str, Schema] = {}
    for parameter in parameters:
        name = parameter.name
        if name not in hints:
            faults.append(f"parameter {name!r} has no type hint; write e.g. `{name}: str`")
        if name not in documented:
            faults.append(
                f"parameter {name!r} is not described in the docstring; add the line `{name}: what it is` under `Args:`"
                " (no type in brackets before the colon)"
            )
        if name in hints:
            try:
                properties[name] = _property(name, hints[name], documented.get(name, ""))
            except SchemaFault as fault:
                faults.append(str(fault))
    if faults:
        raise SchemaFault("; ".join(faults))
    shape: Schema = {"type": "object", "properties": properties}
    required = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    if required:
        shape["required"] = required
    out: Schema = {"name": function.__name__, "description": description, "parameters": shape}
    if "return" in hints:
        out["return"] = _return(hints["return"])
        if returns is not None:
            out["return"]["description"] = returns
    return {"type": "function", "function": out}


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the default of every parameter that has one."""
    return {p.name: p.default for p in _parameters(function, []) if p.default is not inspect.Parameter.empty}


def parse_docstring(doc: str) -> tuple[str, dict[str, str], str | None]:
    """Split a Google docstring into description, parameter descriptions, and that of the return value, or None."""
    doc = doc.strip()
    marks = [(m.start(), m.end(), m.group()) for m in _SECTION.finditer(doc)]
    description = doc[: marks[0][0]].strip() if marks else doc
    args: dict[str, str] = {}
    returns: str | None = None
    for i, (start, end, mark) in enumerate(marks):
        if not re.search(r"\n\s*$", doc[:start]) or not re.match(r"\s*\n", doc[end:]):
            continue  # a heading stands on a line of its own
        stop = next((s for s, _, m in marks[i + 1 :] if m != "Args:" and not (mark == "Returns:" == m)), len(doc))
        body = doc[end:stop].strip()
        if mark == "Args:" and not args:
            args = _parse_args(body)
        elif mark == "Returns:" and returns is None:
            returns = body
    return description, args, returns


def _parse_args(body: str) -> dict[str, str]:
    out: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in filter(str.strip, body.split("\n")):
        match = re.match(r"\s*(\w+):\s*(.*)", line)
        if match:
            current = out[match.group(1)] = [match.group(2).strip()]
        elif current is not None:
            current.append(line.strip())
    return {name: " ".join(filter(None, lines)) for name, lines in out.items()}


def _parameters(function: Callable[..., Any], faults: list[str]) -> Iterator[inspect.Parameter]:
    """Yield the parameters that JSON arguments can fill; those that none can are added to the faults."""
    for i, parameter in enumerate(inspect.signature(function).parameters.values()):
        if i == 0 and parameter.name in ("self", "cls") and parameter.annotation is inspect.Parameter.empty:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            faults.append(
                f"parameter {parameter!s} cannot be filled from named JSON arguments; name each parameter,"
                " without *, ** or /"
            )
            continue
        yield parameter


def _property(name: str, hint: Any, description: str) -> Schema:
    try:
        schema = hint_schema(hint)
    except SchemaFault as fault:
        raise SchemaFault(f"parameter {name!r}: {fault}") from fault
    choices = _CHOICES.search(description)
    if choices:
        try:
            listed = json.loads(choices.group(1))
            if not isinstance(listed, list):
                raise ValueError("not a list")
        except ValueError as error:
            raise SchemaFault(
                f"parameter {name!r}: `{choices.group()}` holds no JSON list ({error}); write e.g."
                ' (choices: ["a", "b"])'
            ) from error
        schema["enum"] = [c.strip() if isinstance(c, str) else c for c in listed]
        description = description[: choices.start()].strip()
    schema["description"] = description
    return schema


def _return(hint: Any) -> Schema:
    try:
        return hint_schema(hint)
    except SchemaFault:
        return {"type": "object"}  # what a tool returns is turned into text, so any type will do


def hint_schema(hint: Any) -> Schema:
    """Return the JSON schema of one type hint.

    Raises:
        SchemaFault: JSON arguments cannot make such a value.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in _BARE or (origin in (list, tuple) and not args):
        raise SchemaFault(f"the hint {_show(hint)} does not say of what; write e.g. {_BARE[origin or hint]}")
    if origin is None:
        return _plain(hint)
    if origin is Union or origin is types.UnionType:
        return _union(args)
    if origin is Literal:
        kinds = list(dict.fromkeys(_plain(type(a))["type"] for a in args))
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(args)}
    if origin is list:
        return {"type": "array", "items": hint_schema(args[0])}
    if origin is tuple:
        if len(args) == 1 or ... in args:
            raise SchemaFault(f"the hint {_show(hint)} has no fixed length above one; write list[...]")
        return {"type": "array", "prefixItems": [hint_schema(a) for a in args]}
    if origin is dict:
        out: Schema = {"type": "object"}
        if len(args) == 2:
            out["additionalProperties"] = hint_schema(args[1])
        return out
    raise SchemaFault(f"the hint {_show(hint)} cannot be given as JSON; {_ALLOWED}")


_ALLOWED = "allowed are str, int, float, bool, list[...], tuple[...], dict, Optional, Union and Literal"


def _plain(hint: Any) -> Schema:
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if typing.is_typeddict(hint):
        return {"type": "object"}
    raise SchemaFault(f"the hint {_show(hint)} cannot be given as JSON; {_ALLOWED}")


def _union(args: tuple[Any, ...]) -> Schema:
    parts = [hint_schema(a) for a in args if a is not type(None)]
    if len(parts) == 1:
        out = parts[0]
    elif all(isinstance(p.get("type"), str) for p in parts):
        out = {"type": sorted(p["type"] for p in parts)}
    else:
        out = {"anyOf": parts}
    if type(None) in args:
        out["nullable"] = True
    return out


def _show(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def usage(schema: Mapping[str, Any]) -> str:
    """Return a tool's signature in one line, e.g. `search(query: string, limit?: integer)`."""
    function = schema["function"]
    shape = function.get("parameters") or {}
    required = shape.get("required", ())
    parts = [f"{name}{'' if name in required else '?'}: {kind(s)}" for name, s in shape.get("properties", {}).items()]
    return f"{function['name']}({', '.join(parts)})"


def kind(schema: Mapping[str, Any]) -> str:
    """Return a schema's type in words."""
    if "anyOf" in schema:
        text = " or ".join(kind(s) for s in schema["anyOf"])
    else:
        declared = schema.get("type", "any")
        text = declared if isinstance(declared, str) else " or ".join(declared)
        if text == "array" and schema.get("items"):
            text = f"array of {kind(schema['items'])}"
    return f"{text} or null" if schema.get("nullable") else text
