"""Arguments: what is taken, what is coerced, what is refused and how the refusal reads."""

from typing import Any, Literal

import pytest

from offline_agent.envs.base import ToolSet
from offline_agent.records import Action, ToolCall


class Env:
    def tool(
        self,
        s: str = "d",
        i: int = 1,
        f: float = 0.5,
        b: bool = False,
        o: int | None = None,
        e: Literal["red", "green"] = "red",
        n: Literal[1, 2] = 1,
        l: list[int] = [],  # noqa: B006, E741
        d: dict[str, float] = {},  # noqa: B006
        t: tuple[int, str] = (1, "a"),
        u: int | str = 1,
        x: list[int] | Literal["none", 0] = 0,
        a: Any = None,
    ) -> str:
        """Do it.

        Args:
            s: s
            i: i
            f: f
            b: b
            o: o
            e: e
            n: n
            l: l
            d: d
            t: t
            u: u
            x: x
            a: a
        """

    def need(self, query: str, limit: int) -> str:
        """Do it.

        Args:
            query: q
            limit: l
        """

    def bare(self) -> str:
        """Do it."""


TOOLS = ToolSet.of(Env)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("s", "text", "text"),
        ("s", "a\ud800b", "a\ufffdb"),
        ("s", "\ud83d\ude00", "\U0001f600"),
        ("i", 3, 3),
        ("i", 3.0, 3),
        ("i", -0.0, 0),
        ("f", 3, 3.0),
        ("f", 2**60, 2**60),
        ("f", 0.25, 0.25),
        ("b", True, True),
        ("o", None, None),
        ("o", 4.0, 4),
        ("e", "green", "green"),
        ("n", 2.0, 2),
        ("l", [1, 2.0], [1, 2]),
        ("l", (), []),
        ("d", {"k": 1}, {"k": 1.0}),
        ("t", [1, "b"], [1, "b"]),
        ("u", "1", "1"),
        ("u", 1, 1),
        ("x", [1.0], [1]),
        ("x", "none", "none"),
        ("a", {"k": [None, {"\ud800": "\ud800"}]}, {"k": [None, {"\ufffd": "\ufffd"}]}),
    ],
)
def test_accepted(name, value, expected):
    arguments, fault, detail = TOOLS.validate(ToolCall("tool", {name: value}))
    assert (fault, detail) == (None, None)
    assert arguments == {name: expected}
    assert type(arguments[name]) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("s", 3, 'must be string, got integer 3; write "3" in quotes'),
        ("s", None, "got null; leave it out"),
        ("i", "3", 'must be integer, got string "3"; write 3 without quotes'),
        ("i", 3.5, "must be integer, got number 3.5"),
        ("i", True, "must be integer, got boolean true"),
        ("i", float("inf"), "must be integer"),
        ("f", float("nan"), "must be number"),
        ("f", "0.5", "write 0.5 without quotes"),
        ("f", False, "must be number, got boolean"),
        ("b", 1, "must be boolean, got integer 1"),
        ("b", "true", "write true without quotes"),
        ("o", "4", "must be integer or null"),
        ("e", "gren", 'must be one of "red", "green", got string "gren". Did you mean \'green\'?'),
        ("n", 3, "must be one of 1, 2"),
        ("n", True, "must be integer"),
        ("l", "1", "must be array of integer"),
        ("l", "[1]", "write [1] without quotes"),
        ("l", [1, "2"], "'l[1]' must be integer"),
        ("d", {"k": "v"}, "'d.k' must be number"),
        ("d", {1: 2}, "keys must be text"),
        ("d", [1], "must be object"),
        ("t", [1], "exactly 2 items, got 1"),
        ("x", 1, "must be array of integer or string or integer, got integer 1"),
        ("a", object(), "which is no JSON"),
        ("a", {"k": float("nan")}, "must be JSON"),
        ("a", b"bytes", "which is no JSON"),
    ],
)
def test_refused_with_what_is_wrong(name, value, told):
    arguments, fault, detail = TOOLS.validate(ToolCall("tool", {name: value}))
    assert arguments is None and fault == "bad_arguments"
    assert told in detail and "usage: tool(" in detail and "tool" in detail


def test_every_fault_of_a_call_is_told_at_once():
    _, fault, detail = TOOLS.validate(ToolCall("need", {"qery": "x", "limit": "3"}))
    assert fault == "bad_arguments"
    assert "missing required argument 'query'" in detail
    assert "unknown argument 'qery'" in detail and "Did you mean 'query'?" in detail
    assert "write 3 without quotes" in detail
    assert detail.endswith("usage: need(query: string, limit: integer)")


@pytest.mark.parametrize("arguments", [None, [], "{}", 3])
def test_arguments_that_are_no_object(arguments):
    assert TOOLS.validate(ToolCall("need", arguments))[1] == "bad_arguments"


def test_unknown_tools_are_answered_with_the_nearest_name():
    arguments, fault, detail = TOOLS.validate(ToolCall("nead", {}))
    assert (arguments, fault) == (None, "unknown_tool")
    assert "bare, need, tool" in detail and "Did you mean 'need'?" in detail
    assert len(TOOLS.validate(ToolCall("x" * 10**6, {}))[2]) < 500


def test_nesting_without_end_is_refused():
    value: list = []
    for _ in range(5000):
        value = [value]
    assert TOOLS.validate(ToolCall("tool", {"a": value}))[1] == "bad_arguments"
    assert TOOLS.validate(ToolCall("tool", {"i": value}))[1] == "bad_arguments"
    assert TOOLS.validate(ToolCall("tool", {"nobody": value}))[1] == "bad_arguments"


def test_a_refused_value_of_any_length_makes_a_short_message():
    assert len(TOOLS.validate(ToolCall("tool", {"i": "9" * 10**6}))[2]) < 2000
    assert len(TOOLS.validate(ToolCall("tool", {"i": ["9" * 10**6]}))[2]) < 2000


def _key(name, **arguments):
    return TOOLS.canonical_key(Action("t", call=ToolCall(name, arguments)))


def test_keys_are_equal_for_what_means_the_same():
    assert _key("tool", i=3.0, s="x") == _key("tool", s="x", i=3)
    assert _key("tool", f=2) == _key("tool", f=2.0)
    assert _key("tool", i=1, e="red") == _key("tool") == "tool{}"
    assert _key("need", query="ü", limit=2) == 'need{"limit":2,"query":"ü"}'
    thought = Action("other words", thought="other", call=ToolCall("bare", {}))
    assert TOOLS.canonical_key(thought) == _key("bare")


def test_keys_differ_for_what_differs():
    assert _key("tool", b=True) != _key("tool", b=False) == _key("tool")
    assert _key("tool", i=2) != _key("tool", i=3)
    assert _key("tool", a=1) != _key("tool", a=True) != _key("tool", a="1")


def test_keys_of_faulty_turns_are_their_error_class():
    assert TOOLS.canonical_key(Action("{", fault="invalid_json")) == "!invalid_json"
    assert _key("nobody") == "!unknown_tool"
    assert _key("need", query=3) == "!bad_arguments" == _key("need")


def test_keys_of_answers():
    assert (
        TOOLS.canonical_key(Action(" It is\n done. "))
        == "answer:It is done."
        == TOOLS.canonical_key(Action("It is done."))
    )
    assert TOOLS.canonical_key(Action("It is not.")) != TOOLS.canonical_key(Action("It is."))
    same = ToolSet(TOOLS.schemas, answers_differ=False)
    assert same.canonical_key(Action("a")) == same.canonical_key(Action("b"))


def test_tools_offered_later_are_valid_but_not_shown():
    need = next(s for s in TOOLS.schemas if s["function"]["name"] == "need")
    bare = next(s for s in TOOLS.schemas if s["function"]["name"] == "bare")
    tools = ToolSet([bare], late=[need])
    assert tools.names == ("bare",) and tools.schemas == (bare,)
    assert tools.validate(ToolCall("need", {"query": "x", "limit": 1}))[1] is None
    assert "need" not in tools.validate(ToolCall("nobody", {}))[2]
