"""Foreign schemas of tools, such as an MCP server's: references put in, and arguments checked by `jsonschema`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from offline_agent.errors import ConfigError

MOST = 5_000
"""Most parts of a schema after its references are put in."""
_TOLD = 5  # faults of a call
_LONGEST = 200  # characters of a fault; its end says why

_NAMED = ("properties", "patternProperties", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "not", "if", "then", "else", "contains", "propertyNames", "additionalProperties")
_NOTES = frozenset(("title", "description", "default", "examples", "format", "deprecated", "readOnly", "writeOnly",
                    "$schema", "$id", "$comment"))  # fmt: skip
_CLOSED = _NOTES | {"type", "properties", "required"}  # other words at the top may allow arguments without a name here
_PLAIN = _CLOSED | {"enum", "items", "prefixItems", "additionalProperties", "nullable"}


def self_contained(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's schema without references, and with a dict for each boolean that stands for a schema.

    References that lead out of the schema, and those inside of what they name, become the schema of any value: the
    tool's owner checks such values. Required arguments that are not described are described as any value.

    Raises:
        ConfigError: It has more than `MOST` parts.
    """
    count = 0

    def put(part: Any, inside: tuple[str, ...] = ()) -> Any:
        nonlocal count
        count += 1
        if count > MOST:
            raise ConfigError(f"a tool's schema has more than {MOST:,} parts after its references are put in")
        if isinstance(part, bool):
            return {} if part else {"not": {}}
        if not isinstance(part, Mapping):
            return part  # no schema: `broken` says so
        name = part.get("$ref", part.get("$dynamicRef"))
        out = {key: below(key, one, inside) for key, one in part.items() if key not in _REFERENCES}
        if not isinstance(name, str):
            return out
        meant = {} if name in inside else put(_found(schema, name), (*inside, name))
        return {**meant, **out} if set(out) <= _NOTES else {"allOf": [meant, out]}

    def below(key: str, one: Any, inside: tuple[str, ...]) -> Any:
        if key in _NAMED and isinstance(one, Mapping):
            return {name: put(each, inside) for name, each in one.items()}
        if isinstance(one, list) and key in (*_LISTS, "items"):
            return [put(each, inside) for each in one]
        kept = key not in _SINGLE or (key == "additionalProperties" and isinstance(one, bool))
        return one if kept else put(one, inside)

    made: dict[str, Any] = put(schema)
    if set(made) <= _CLOSED and (undescribed := set(made.get("required", ())) - set(made.get("properties", ()))):
        made["properties"] = {**made.get("properties", {}), **{name: {} for name in sorted(undescribed)}}
    return made


_REFERENCES = ("$ref", "$dynamicRef", "$defs", "definitions")


def _found(schema: Any, reference: str) -> Any:
    """Return the part that a reference such as `#/$defs/Name` names; the schema of any value where there is none."""
    if reference != "#" and not reference.startswith("#/"):
        return {}
    for name in reference.split("/")[1:]:
        key = unquote(name).replace("~1", "/").replace("~0", "~")
        if not isinstance(schema, Mapping) or key not in schema:
            return {}
        schema = schema[key]
    return schema


def is_plain(schema: Mapping[str, Any]) -> bool:
    """Return whether a tool's schema has only the words that `tools.schema` writes and `tools.validation` checks."""
    closed = schema.get("additionalProperties", False) is False and set(schema) <= _CLOSED | {"additionalProperties"}
    return closed and all(map(_plain, (schema.get("properties") or {}).values()))


def _plain(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    if "anyOf" in schema:  # words beside it would be left unchecked
        return set(schema) <= _NOTES | {"anyOf", "nullable"} and all(map(_plain, schema["anyOf"]))
    extra = schema.get("additionalProperties")
    below = [*(schema.get("properties") or {}).values(), *(schema.get("prefixItems") or ())]
    below += [schema["items"]] if "items" in schema else []
    below += [] if extra is None or isinstance(extra, bool) else [extra]
    return set(schema) <= _PLAIN and all(map(_plain, below))


def broken(schema: Mapping[str, Any]) -> str | None:
    """Return why a schema is none of JSON Schema; None where it is one."""
    return _validator(json.dumps(schema, sort_keys=True))[1]


def faults(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """Return the faults of arguments by a foreign schema, a line each; none where the schema is broken."""
    validator, _ = _validator(json.dumps(schema, sort_keys=True))
    if validator is None:
        return []  # a broken schema is said when the tools are listed
    try:
        return list(_lines(validator, arguments))[:_TOLD]
    except re.error:
        return []  # a pattern of another language, which the tool's owner checks


def _lines(validator: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    from jsonschema.exceptions import best_match

    for error in validator.iter_errors(arguments):
        deepest = best_match([error])
        told = deepest.message if len(deepest.message) <= _LONGEST else f"...{deepest.message[-_LONGEST:]}"
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in deepest.absolute_path)
        yield f"argument {where[1:]!r}: {told}" if where else told


@lru_cache(maxsize=512)
def _validator(schema: str) -> tuple[Any, str | None]:
    """Return the validator of a schema, and why there is none."""
    try:
        from jsonschema import Draft202012Validator, FormatChecker, SchemaError
        from jsonschema.validators import validator_for
    except ImportError:  # env.python has the environment's library alone, and the environment refuses by itself
        return None, None

    shape = json.loads(schema)
    kind = validator_for(shape, default=Draft202012Validator)
    try:
        kind.check_schema(shape, format_checker=FormatChecker(()))  # patterns may be of another language
    except SchemaError as error:
        return None, error.message
    return kind(shape if set(shape) - _CLOSED else {**shape, "additionalProperties": False}), None
