"""Sources of random arguments: what descriptions and a conversation name has a chance, and puzzles are solved by it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from offline_agent.arguments.sources import SeenText, options, read
from offline_agent.arguments.values import argument_values
from offline_agent.envs.base import EnvSpec
from offline_agent.policies.scripted import RandomPolicy
from offline_agent.records import Action, Context, Task, ToolCall
from offline_agent.search.settings import SearchSettings
from tests.helpers.search import search, tasks


class Dials:
    """A box with three dials, whose arguments stand in descriptions alone."""

    @classmethod
    def tasks(cls, split: str) -> Iterable[dict[str, Any]]:
        start = {"train": 0, "validation": 100, "test": 200}[split]
        return ({"seed": seed} for seed in range(start, start + 20))

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.code = [rng.randint(0, 3) for _ in range(3)]
        self.dials, self.terminated = [0, 0, 0], False
        return "Open the box. A dial clicks at its number."

    def turn(self, dial: int, to: int) -> str:
        """Turn a dial.

        Args:
            dial: Which dial, 1-3.
            to: The number, 0-3.
        """
        if not 1 <= dial <= 3 or not 0 <= to <= 3:
            raise ValueError("there is no such dial or number")
        self.dials[dial - 1] = to
        return "It clicks." if to == self.code[dial - 1] else "It turns."

    def open_box(self) -> str:
        """Open the box, once."""
        self.terminated = True
        return "It opens." if self.dials == self.code else "It stays shut."

    def get_reward(self) -> float:
        right = sum(a == b for a, b in zip(self.dials, self.code, strict=True))
        return right / 3 if self.terminated else 0.0


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
    assert options(text)[0] == listed
    seen = SeenText("Error: what?", SeenText(text, SeenText("Commands: sing; dance; wait", None)))
    made = drawn("string", own="One of the commands listed, such as go east", seen=seen)
    assert sum(made[one] for one in listed) > 260


def test_a_list_of_one_is_a_list_where_its_label_came_before() -> None:
    first = SeenText("Play the game: do what you like, as told.\nCommands: go east; look", None)
    assert "go east" in first.options
    after = SeenText("You see: a lamp, a key\nCommands: take key", first)
    assert after.options == ["take key"] and SeenText("Commands: look", after).options == ["look"]
    refused = SeenText("Commands: look", SeenText("Error: there is no door, or it is locked", first))
    assert SeenText("Error: you cannot go north", refused).options == ["look"]
    noted = SeenText("Commands: this line is a sentence and no command of anybody\nExits: north, south", first)
    assert noted.options == ["north", "south"]


def test_prose_has_no_options() -> None:
    assert options("You see a door, a key and a lamp; it is late.\nTime: 12\nA: one; B: two, three")[0] == []


def test_small_integers_have_a_chance_whatever_was_read() -> None:
    counts = drawn("integer", seen=SeenText("There are 5000 of 7000.", None))
    assert all(counts[n] for n in range(11)) and counts[5000] and counts[7000]


def test_a_range_of_the_description_is_drawn_from_most_and_numbers_of_texts_still_have_a_chance() -> None:
    counts = drawn("integer", own="Which dial, 21-23.", tool="There are 77.", seen=SeenText("Take 55.", None))
    assert sum(counts[n] for n in (21, 22, 23)) > 200 and counts[77] and counts[55]


def test_texts_that_a_tool_answered_well_are_used_again_and_refused_ones_are_not() -> None:
    def after(told: str) -> Counter[Any]:
        start = Context(TASK, "", (), "Look around.")
        call = ToolCall("say", {"v": "zorkmid"})
        return drawn("string", seen=SeenText.of(start.child(Action("", call=call), told)))

    assert after("It opens.")["zorkmid"] > 20
    assert after("Error: there is no such word")["zorkmid"] == 0


def test_fixed_tuples_fit() -> None:
    pair = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}]}
    values = argument_values({"properties": {"v": pair}, "required": ["v"]}, random.Random(1), SeenText("", None))
    assert isinstance(values["v"][0], int) and isinstance(values["v"][1], bool) and len(values["v"]) == 2


def test_a_random_search_solves_a_puzzle_whose_arguments_are_only_described() -> None:
    spec = EnvSpec(Dials)
    run = search(spec, RandomPolicy(), SearchSettings(simulations=64), tasks(spec, 10))
    trees = [one.tree for one in run.searches.values()]
    solved = sum(any(n.verdict and n.verdict.success for n in tree.nodes) for tree in trees if tree is not None)
    assert solved >= 5
