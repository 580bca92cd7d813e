"""Schemas of other people's tools: they end no run, arguments are checked by them, and random ones are drawn."""

from __future__ import annotations

import random
from typing import Any

import pytest

from offline_agent.arguments.foreign import MOST, self_contained
from offline_agent.arguments.sources import SeenText
from offline_agent.arguments.values import argument_values
from offline_agent.envs.tools import ToolSet
from offline_agent.errors import ConfigError
from offline_agent.records import ToolCall

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
POINT = {"type": "object", "properties": {"x": NUMBER}, "required": ["x"], "additionalProperties": False}
LINE = {"properties": {"to": {"$ref": "#/$defs/Point"}}, "required": ["to"], "$defs": {"Point": POINT}}
Values = list[dict[str, Any]]
SHAPES: dict[str, tuple[dict[str, Any], Values, Values]] = {  # a schema, what fits it, what does not
    "required is not described": (
        {"properties": {"a": TEXT}, "required": ["b"]}, [{"b": 1}], [{"a": "x"}, {"b": 1, "c": 1}]),
    "true for a schema": (
        {"properties": {"a": True, "l": {"type": "array", "items": True}}}, [{"a": [1], "l": [1]}], [{"c": 1}]),
    "false for a schema": (
        {"properties": {"a": False, "b": TEXT}, "required": ["b"]}, [{"b": ""}], [{"a": 1, "b": ""}]),
    "more arguments": ({"type": "object", "additionalProperties": NUMBER}, [{"x": 1}, {}], [{"x": "1"}]),
    "no word at all": ({"type": "object", "additionalProperties": True}, [{"x": [{}]}], []),
    "one of two": (
        {"type": "object", "anyOf": [{"properties": {"a": TEXT}, "required": ["a"]},
                                     {"properties": {"b": NUMBER}, "required": ["b"]}]},
        [{"a": "x"}, {"b": 1}], [{}]),
    "all of two": (
        {"allOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"required": ["b"]}]},
        [{"a": "", "b": 1}], [{"a": ""}]),
    "a reference": (LINE, [{"to": {"x": 1}}], [{"to": {}}, {"to": {"x": 1, "y": 1}}]),
    "all by reference": ({"$ref": "#/$defs/A", "$defs": {"A": POINT}}, [{"x": 1}], [{}, {"y": 1}]),
    "a tree": (
        {"properties": {"v": NUMBER, "below": {"type": "array", "items": {"$ref": "#"}}}, "required": ["below"]},
        [{"below": [{"v": 1}]}], [{"v": ""}]),
    "a reference outwards": (
        {"properties": {"a": {"$ref": "http://127.0.0.1:1/schema.json"}}}, [{"a": 1}], [{"b": 1}]),
    "bounds": (
        {"properties": {"n": {"type": "integer", "minimum": 3, "maximum": 4}}, "required": ["n"]},
        [{"n": 3}], [{"n": 5}, {"m": 3}]),
    "one const": (
        {"properties": {"k": {"oneOf": [{"const": "a"}, {"const": "b"}]}}, "required": ["k"]},
        [{"k": "a"}], [{"k": "c"}]),
    "another language's pattern": (
        {"properties": {"a": {"type": "string", "pattern": r"^\p{L}+$"}}}, [{"a": "x"}], []),
}  # fmt: skip


def tools(shape: dict[str, Any]) -> ToolSet:
    tool = {"type": "function", "function": {"name": "t", "description": "d", "parameters": shape}}
    return ToolSet.of(type("Adapted", (), {"_tool_schemas": [tool]}))


@pytest.mark.parametrize(("shape", "good", "bad"), SHAPES.values(), ids=SHAPES)
def test_arguments_are_checked_and_drawn(shape: dict[str, Any], good: Values, bad: Values) -> None:
    made = ToolSet.from_json(tools(shape).to_json())
    assert [made.validate(ToolCall("t", one))[2] for one in good] == [None] * len(good)
    for one in bad:
        _, fault, detail = made.validate(ToolCall("t", one))
        assert fault == "bad_arguments" and detail is not None and "usage: t(" in detail
    described = made.schemas[0]["function"]["parameters"]
    for seed in range(30):
        drawn = argument_values(described, random.Random(seed), SeenText("three words here", None))
        assert made.validate(ToolCall("t", drawn))[2] is None


def test_values_of_foreign_schemas_are_clean_json_and_mean_the_same() -> None:
    made = tools({"type": "object", "additionalProperties": True})
    assert made.validate(ToolCall("t", {"n": 3.0, "s": "\ud800"}))[0] == {"n": 3, "s": "\ufffd"}
    assert made.validate(ToolCall("t", {"n": object()}))[1] == "bad_arguments"
    long = tools({"properties": {"n": {"type": "integer", "minimum": 3}}}).validate(ToolCall("t", {"n": "9" * 10**6}))
    assert "'n'" in str(long[2]) and "is not of type 'integer'" in str(long[2]) and len(str(long[2])) < 500


def test_what_is_no_schema_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="tool 't': its schema is no JSON Schema: 'dict' is not valid"):
        tools({"properties": {"a": {"type": "dict"}}})


def test_references_that_multiply_are_bounded() -> None:
    many = {f"L{i}": {"anyOf": [{"$ref": f"#/$defs/L{i + 1}"}] * 10} for i in range(9)}
    with pytest.raises(ConfigError, match=f"more than {MOST:,} parts"):
        self_contained({"properties": {"a": {"$ref": "#/$defs/L0"}}, "$defs": many})
