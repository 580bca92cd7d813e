"""Validation of JSON arguments against the schemas of `schema`, with error messages for a policy.

Schemas with other words than those of `schema` are checked by the library `jsonschema` (`arguments.foreign`).
Only coercions that cannot change the meaning are made: an integral float for an integer (3.0 → 3), an integer for
a number (3 → 3.0), and lone surrogates in text (→ U+FFFD). Quoted numbers and numbers for text are refused: TRL
would hand them to the tool as they are, so a policy must learn to write the type it is asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offline_agent.arguments.foreign import faults as foreign_faults
from offline_agent.envs.tools.schema import kind
from offline_agent.errors import did_you_mean

MAX_DEPTH = 64
_SHOWN = 60


class BadValue(Exception):
    """A value does not fit its schema; the message is for the policy."""


def clean_text(text: str) -> str:
    """Return the text without lone surrogates (U+FFFD instead); pairs of them become the character they mean."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def check_arguments(shape: Mapping[str, Any], arguments: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the coerced arguments and one line per fault.

    Args:
        shape: The tool's `parameters` schema.
        arguments: The policy's.
    """
    if not isinstance(arguments, Mapping):
        return {}, [f"arguments must be a JSON object, got {_got(arguments)}"]
    properties: Mapping[str, Any] = shape.get("properties", {})
    coerced: dict[str, Any] = {}
    faults = [
        f"missing required argument {name!r} ({kind(properties[name])})"
        for name in shape.get("required", ())
        if name not in arguments
    ]
    for name, value in arguments.items():
        if name not in properties:
            allowed = ", ".join(map(repr, properties)) or "none"
            faults.append(f"unknown argument {name!r}, allowed: {allowed}{_near(str(name), properties)}")
            continue
        try:
            coerced[name] = coerce(properties[name], value, name)
        except BadValue as bad:
            faults.append(str(bad))
    return coerced, faults


def check_foreign(shape: Mapping[str, Any], arguments: Any) -> tuple[dict[str, Any], list[str]]:
    """Return as `check_arguments`, for a schema that is not `arguments.foreign.is_plain`."""
    if not isinstance(arguments, Mapping):
        return check_arguments(shape, arguments)
    try:
        given = {clean_text(str(name)): _whole(free(value, str(name))) for name, value in arguments.items()}
    except BadValue as bad:
        return {}, [str(bad)]
    return given, foreign_faults(shape, given)


def _whole(value: Any) -> Any:
    """Return a cleaned JSON value with integers for integral floats, which JSON Schema takes for the same."""
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def coerce(schema: Mapping[str, Any], value: Any, where: str, depth: int = 0) -> Any:
    """Return `value` as the schema's type.

    Raises:
        BadValue: It does not fit.
    """
    if value is None and (schema.get("nullable") or "null" in _types(schema)):
        return None
    out = _by_type(schema, value, where, depth)
    if "enum" in schema and not any(same(out, choice) for choice in schema["enum"]):
        shown = ", ".join(json.dumps(c, ensure_ascii=False) for c in schema["enum"][:20])
        more = f" and {len(schema['enum']) - 20} more" if len(schema["enum"]) > 20 else ""
        near = _near(out, [c for c in schema["enum"] if isinstance(c, str)]) if isinstance(out, str) else ""
        raise BadValue(f"argument {where!r} must be one of {shown}{more}, got {_got(value)}{near}")
    return out


def _by_type(schema: Mapping[str, Any], value: Any, where: str, depth: int) -> Any:
    if "anyOf" in schema:
        for option in schema["anyOf"]:
            try:
                return coerce(option, value, where, depth + 1)
            except BadValue:
                continue
        raise BadValue(f"argument {where!r} must be {kind(schema)}, got {_got(value)}")
    kinds = _types(schema)
    if not kinds:
        return free(value, where, depth)
    exact = _type_of(value)
    if exact == "integer" and "integer" in kinds:
        return value
    if exact == "integer" and "number" in kinds:
        return float(value) if abs(value) <= 2**53 else value
    if exact == "number" and math.isfinite(value):
        if "number" in kinds:
            return value
        if "integer" in kinds and value.is_integer():
            return int(value)
    elif exact in kinds and exact in ("string", "boolean"):
        return clean_text(value) if exact == "string" else value
    elif exact in kinds and exact == "array":
        return _array(schema, value, where, depth)
    elif exact in kinds and exact == "object":
        return _object(schema, value, where, depth)
    raise BadValue(f"argument {where!r} must be {kind(schema)}, got {_got(value)}{_mend(kinds, value)}")


def _array(schema: Mapping[str, Any], value: Sequence[Any], where: str, depth: int) -> list[Any]:
    fixed = schema.get("prefixItems")
    if fixed is not None:
        if len(value) != len(fixed):
            raise BadValue(f"argument {where!r} must have exactly {len(fixed)} items, got {len(value)}")
        return [coerce(s, v, f"{where}[{i}]", depth + 1) for i, (s, v) in enumerate(zip(fixed, value, strict=True))]
    items = schema.get("items") or {}
    return [coerce(items, v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]


def _object(schema: Mapping[str, Any], value: Mapping[str, Any], where: str, depth: int) -> dict[str, Any]:
    properties, extra = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            raise BadValue(f"argument {where!r} lacks the required key {name!r}; keys: {', '.join(properties)}")
    out: dict[str, Any] = {}
    for name, item in value.items():
        if not isinstance(name, str):
            raise BadValue(f"argument {where!r} has the key {name!r}; keys must be text")
        if name not in properties and extra is False:
            raise BadValue(f"argument {where!r} has the unknown key {name!r}{_near(name, properties)}")
        below = properties.get(name, extra if isinstance(extra, Mapping) else {})
        out[clean_text(name)] = coerce(below, item, f"{where}.{name}", depth + 1)
    return out


def free(value: Any, where: str, depth: int = 0) -> Any:
    """Return a copy of any JSON value, cleaned.

    Raises:
        BadValue: It is no JSON, not finite, or nested deeper than `MAX_DEPTH`.
    """
    if depth > MAX_DEPTH:
        raise BadValue(f"argument {where[:_SHOWN]!r} is nested more than {MAX_DEPTH} deep")
    exact = _type_of(value)
    if exact == "string":
        return clean_text(value)
    if exact == "array":
        return [free(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    if exact == "object":
        if not all(isinstance(k, str) for k in value):
            raise BadValue(f"argument {where!r} has a key that is not text")
        return {clean_text(k): free(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
    if exact is None or (exact == "number" and not math.isfinite(value)):
        raise BadValue(f"argument {where!r} must be JSON, got {_got(value)}")
    return value


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    declared = schema.get("type")
    if declared is None:
        return ()
    return (declared,) if isinstance(declared, str) else tuple(declared)


def _type_of(value: Any) -> str | None:
    if value is None:
        return "null"
    for name, kinds in _PYTHON:
        if isinstance(value, kinds):
            return name
    return None


_PYTHON: tuple[tuple[str, Any], ...] = (
    ("boolean", bool),
    ("integer", int),
    ("number", float),
    ("string", str),
    ("array", (list, tuple)),
    ("object", Mapping),
)


def same(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal; True is not 1."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def _got(value: Any) -> str:
    exact = _type_of(value)
    if exact is None:
        return f"a {type(value).__name__}, which is no JSON"
    try:
        text = json.dumps(value, ensure_ascii=True, default=str)
    except (RecursionError, ValueError, TypeError):
        text = "..."
    return f"{exact} {text if len(text) <= _SHOWN else text[:_SHOWN] + '...'}" if value is not None else "null"


def _near(got: str, allowed: Iterable[str]) -> str:
    """Return the nearest allowed name as a sentence after another."""
    detail = did_you_mean(got[:_SHOWN], allowed)
    return f".{detail}" if detail else ""


def _mend(kinds: tuple[str, ...], value: Any) -> str:
    """Return how to write the value instead, where that is certain; "" otherwise."""
    if value is None:
        return "; leave it out if it is optional"
    if isinstance(value, str) and set(kinds) & {"integer", "number", "boolean", "array", "object"}:
        try:
            meant = _type_of(json.loads(value)) or ""
        except (ValueError, RecursionError):
            return ""
        if meant in kinds or (meant == "integer" and "number" in kinds):
            return f"; write {value.strip()[:_SHOWN]} without quotes"
    if "string" in kinds and isinstance(value, int | float):
        return f"; write {json.dumps(str(value))} in quotes"
    return ""
