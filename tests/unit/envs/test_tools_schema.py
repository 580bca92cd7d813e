"""Schemas by reflection equal transformers', and what cannot be described is refused by name."""

from typing import Any, Literal, Optional, Union

import pytest

from offline_agent.envs.base import ToolSet
from offline_agent.envs.tools.schema import function_schema
from offline_agent.errors import ConfigError


class Plain:
    def no_arguments(self) -> str:
        """Do it."""

    def no_return(self, a: str):
        """Do it.

        Args:
            a: The a.
        """

    def basics(self, a: str, b: int, c: float, d: bool, e: Any = None) -> str:
        """Do it,
        in two lines.

        And a paragraph.

        Args:
            a: The a.
            b: The b,
                which goes on: here.
            c: The c
            d: The d.

            e: The e.

        Returns:
            What was done.

        Raises:
            ValueError: It was not.
        """

    def containers(
        self,
        a: list[str],
        b: dict,
        c: dict[str, int],
        d: list[dict[str, list[float]]],
        e: tuple[int, str],
        f: list[Any],
    ) -> dict[str, Any]:
        """Do it.

        Args:
            a: The a.
            b: The b.
            c: The c.
            d: The d.
            e: The e.
            f: The f.
        """

    def optionals(
        self,
        a: Optional[str] = None,  # noqa: UP045
        b: int | None = None,
        c: Union[int, str] = 1,  # noqa: UP007
        d: list[int] | str | None = None,
        e: list[str] | None = None,
        f: float | int = 1.0,
    ) -> None:
        """Do it.

        Args:
            a: The a.
            b: The b.
            c: The c.
            d: The d.
            e: The e.
            f: The f.
        """

    def choices(
        self,
        a: Literal["x", "y"],
        b: Literal[1, 2],
        c: Literal["x", 1, None],
        d: str,
        e: int = 1,
    ) -> list[str]:
        """Do it.

        Args:
            a: The a.
            b: The b.
            c: The c.
            d: The d (choices: ["tea", " coffee "])
            e: The e. (Choices: [1, 2])

        Returns:
            Both of them.
        """

    @staticmethod
    def static(a: int) -> str:
        """Do it.

        Args:
            a: The a.
        """

    def keyword_only(self, a: int, *, b: str = "x") -> str:
        """Do it.

        Args:
            a: The a.
            b: The b.
            nobody: Has this.
        """


class Inherited(Plain):
    def no_arguments(self) -> str:
        """Do something else. Returns: nothing."""


TOOLS = [n for n in vars(Plain) if not n.startswith("_")]


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("cls", [Plain, Inherited])
def test_schema_equals_transformers(cls, name):
    from transformers.utils import get_json_schema

    ours = {s["function"]["name"]: s for s in ToolSet.of(cls).schemas}
    assert ours[name] == get_json_schema(getattr(cls(), name))


def test_tools_are_those_that_trl_lists():
    class Env:
        terminated = False

        def reset(self):
            """Not a tool."""

        def get_reward(self):
            """Not a tool."""

        def _hidden(self):
            """Not a tool."""

        @property
        def state(self):
            raise RuntimeError("a property must not be evaluated")

        @classmethod
        def tasks(cls, split):
            """Not a tool."""

        @staticmethod
        def b() -> str:
            """A tool."""

        def a(self) -> str:
            """A tool."""

    assert ToolSet.of(Env).names == ("a", "b")


class Class:
    pass


def _faulty(index):
    def no_doc(self, a: int): ...

    def no_hint(self, a):
        """Do.

        Args:
            a: The a.
        """

    def no_args_entry(self, a: int, b: int):
        """Do.

        Args:
            a: The a.
        """

    def typed_args_entry(self, a: int):
        """Do.

        Args:
            a (int): The a.
        """

    def bare_list(self, a: list):
        """Do.

        Args:
            a: The a.
        """

    def a_class(self, a: Class):
        """Do.

        Args:
            a: The a.
        """

    def a_set(self, a: set[int]):
        """Do.

        Args:
            a: The a.
        """

    def starred(self, *a: int):
        """Do.

        Args:
            a: The a.
        """

    def bad_choices(self, a: str):
        """Do.

        Args:
            a: The a (choices: tea, coffee)
        """

    def unresolvable(self, a: "Nowhere"):  # noqa: F821
        """Do.

        Args:
            a: The a.
        """

    return [
        (no_doc, "docstring"),
        (no_hint, "'a' has no type hint"),
        (no_args_entry, "'b' is not described"),
        (typed_args_entry, "no type in brackets"),
        (bare_list, "list[str]"),
        (a_class, "'a': the hint Class"),
        (a_set, "set[int]"),
        (starred, "named"),
        (bad_choices, "JSON list"),
        (unresolvable, "Nowhere"),
    ][index]


@pytest.mark.parametrize("index", range(10))
def test_undescribable_tools_are_named_with_the_mend(index):
    function, expected = _faulty(index)
    cls = type("MyEnv", (), {function.__name__: function, "fine": Plain.no_arguments})
    with pytest.raises(ConfigError) as error:
        ToolSet.of(cls)
    message = str(error.value)
    assert "MyEnv" in message and repr(function.__name__) in message and expected in message


def test_all_faulty_tools_are_listed_at_once():
    functions = dict((f.__name__, f) for f, _ in map(_faulty, range(3)))
    with pytest.raises(ConfigError) as error:
        ToolSet.of(type("MyEnv", (), functions))
    assert len(error.value.faults) == 3


def test_an_alias_is_refused():
    with pytest.raises(ConfigError, match="use `def other`"):
        ToolSet.of(type("MyEnv", (), {"other": Plain.no_return}))


def test_schema_survives_a_docstring_with_sections_in_the_middle_of_lines():
    from transformers.utils import get_json_schema

    def odd(a: str) -> str:
        """Do it.

        Args:
            a: The a. It Returns: nothing special

        Returns:
            Text.
        """

    ours = function_schema(odd)["function"]
    assert ours["parameters"] == get_json_schema(odd)["function"]["parameters"]
