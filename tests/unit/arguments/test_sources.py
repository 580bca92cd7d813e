"""Sources of random arguments: what descriptions and a conversation name has a chance, and puzzles are solved by it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from offline_agent.arguments.sources import SeenText, options, read, sizes
from offline_agent.arguments.values import argument_values
from offline_agent.envs.base import EnvSpec
from offline_agent.policies.scripted import RandomPolicy
from offline_agent.records import Action, Context, Task, ToolCall
from offline_agent.search.settings import SearchSettings
from tests.helpers import puzzles
from tests.helpers.search import search, tasks

TASK = Task("t", "train", {})


def drawn(kind: str, own: str = "", tool: str = "", seen: SeenText | None = None, n: int = 400) -> Counter[Any]:
    """Return how often each value of one parameter `v` is drawn."""
    shape = {"properties": {"v": {"type": kind, "description": own}}, "required": ["v"]}
    source = SeenText("", None) if seen is None else seen
    return Counter(argument_values(shape, random.Random(seed), source, tool)["v"] for seed in range(n))


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("0-3", [(0, 3)]), ("1 to 4", [(1, 4)]), ("between 2 and 5", [(2, 5)]), ("from -2 to 2", [(-2, 2)]),
        ("0..9", [(0, 9)]), ("in [0, 7]", [(0, 7)]), ("at most 6", [(0, 6)]), ("on 2024-05-01", []),
        ("5-2", []), ("version 1.2-3.4", []),
    ],
)  # fmt: skip
def test_ranges_are_read_as_people_write_them(text: str, ranges: list[tuple[int, int]]) -> None:
    assert list(read(text).ranges) == ranges


def test_a_dash_between_numbers_is_no_sign() -> None:
    assert list(read("0-3, -4 and x=-5").numbers) == [0, 3, -4, -5]


@pytest.mark.parametrize(
    ("text", "examples"),
    [
        ('Say "go north" or `wait`.', ["go north", "wait"]), ("A move, e.g. north.", ["north"]),
        ("One of: up, down or left.", ["up", "down", "left"]), ("up/down", ["up", "down"]), ("Write [A C].", ["[A C]"]),
        ("it's the user's", []), ("A command, such as go east.", ["go east"]),
        ("A command, e.g. go east, take key or look.", ["go east", "take key", "look"]),
        ("One of the commands listed, such as go east", ["go east"]),
        ("Such as north when no other way is open", ["north"]),
    ],
)  # fmt: skip
def test_examples_are_read_as_people_write_them(text: str, examples: list[str]) -> None:
    assert list(read(text).examples) == examples


@pytest.mark.parametrize(
    "text",
    [
        "A kitchen.\nCommands: go east; take old key; look", "You can: go east, take old key, or look.",
        "It is dark. Commands:\n go east\n take old key\n look\n\nYou are hungry.",
        "You can do this.\n- go east\n- `take old key`\n- look", "1. go east\n2) take old key\n3: look",
        "go east;take old key;look",
    ],
)  # fmt: skip
def test_lists_of_the_last_text_are_the_options(text: str) -> None:
    listed = ["go east", "take old key", "look"]
    assert options(text) == listed
    seen = SeenText("Error: what?", SeenText(text, SeenText("Commands: sing; dance; wait", None)))
    made = drawn("string", own="One of the commands listed, such as go east", seen=seen)
    assert sum(made[one] for one in listed) > 260


def test_prose_has_no_options() -> None:
    assert options("You see a door, a key and a lamp; it is late.\nTime: 12\nA: one; B: two, three") == []


def test_counts_are_no_ends_of_ranges() -> None:
    assert sizes("Four digits, 1-6") == (4,)


def test_small_integers_have_a_chance_whatever_was_read() -> None:
    counts = drawn("integer", seen=SeenText("There are 5000 of 7000.", None))
    assert all(counts[n] for n in range(11)) and counts[5000] and counts[7000]


def test_a_range_of_the_description_is_drawn_from_most_and_numbers_of_texts_still_have_a_chance() -> None:
    counts = drawn("integer", own="Which dial, 21-23.", tool="There are 77.", seen=SeenText("Take 55.", None))
    assert sum(counts[n] for n in (21, 22, 23)) > 200 and counts[77] and counts[55]


def test_examples_of_a_description_are_said_and_varied() -> None:
    counts = drawn("string", own="The move, e.g. '[A C]'.", seen=SeenText("Towers A, B and C.", None))
    assert counts["[A C]"] > 40 and counts["[B A]"] and counts["[C B]"]


def test_texts_that_a_tool_answered_well_are_used_again_and_refused_ones_are_not() -> None:
    def after(told: str) -> Counter[Any]:
        start = Context(TASK, "", (), "Look around.")
        call = ToolCall("say", {"v": "zorkmid"})
        return drawn("string", seen=SeenText.of(start.child(Action("", call=call), told)))

    assert after("It opens.")["zorkmid"] > 20
    assert after("Error: there is no such word")["zorkmid"] == 0


def test_a_code_of_a_length_and_an_alphabet_is_made() -> None:
    made = drawn("string", own="Four digits, each 1-6.")
    assert sum(n for text, n in made.items() if len(text) == 4 and set(text) <= set("123456")) > 100


def test_fixed_tuples_fit_and_lists_have_the_length_that_is_told() -> None:
    pair = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}]}
    values = argument_values({"properties": {"v": pair}, "required": ["v"]}, random.Random(1), SeenText("", None))
    assert isinstance(values["v"][0], int) and isinstance(values["v"][1], bool) and len(values["v"]) == 2
    five = {"type": "array", "items": {"type": "integer"}, "description": "Five numbers."}
    shape = {"properties": {"v": five}, "required": ["v"]}
    lengths = [len(argument_values(shape, random.Random(i), SeenText("", None))["v"]) for i in range(100)]
    assert lengths.count(5) > 60


@pytest.mark.parametrize(
    ("puzzle", "most", "least"), [(puzzles.Dials, 10, 5), (puzzles.Hanoi, 6, 3), (puzzles.Mastermind, 6, 5)]
)
def test_a_random_search_solves_a_puzzle_whose_arguments_are_only_described(
    puzzle: type, most: int, least: int
) -> None:
    spec = EnvSpec(puzzle)
    run = search(spec, RandomPolicy(), SearchSettings(simulations=64), tasks(spec, most))
    trees = [one.tree for one in run.searches.values()]
    solved = sum(any(n.verdict and n.verdict.success for n in tree.nodes) for tree in trees if tree is not None)
    assert solved >= least
