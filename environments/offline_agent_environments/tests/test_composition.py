"""Environments made of parts: tools taken over, renamed and refused; snapshots; a whole example."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from examples.detective import Detective
from offline_agent.envs.base import EnvSpec
from offline_agent.records import Task
from offline_agent_environments.composition import Composition, Part
from offline_agent_environments.search_qa import SearchQA
from offline_agent_environments.sql import SQL
from tests.helpers.played import call, play, share


class Counter:
    """A part of one's own, with a tool that must not be called in a search."""

    irreversible = {"search"}

    def reset(self) -> None:
        """Start at 0."""
        self.number = 0

    def search(self, by: int) -> str:
        """Count.

        Args:
            by: How far.
        """
        self.number += by
        return str(self.number)

    @property
    def fingerprint(self) -> str:
        """The number."""
        return str(self.number)


class Both(Composition):
    """Two parts with a tool of one name."""

    parts = {"passages": Part(SearchQA, "search"), "counter": Part(Counter, count="search")}


TASK = Task("t", "train", {"question": "?", "gold": ["7"], "passages": {"question": "?", "gold": ["x"]}})


def test_the_example_is_solved_by_its_expert_and_not_by_a_guess():
    spec = EnvSpec(Detective)
    tasks = {split: list(spec.tasks(split)) for split in ("train", "validation", "test")}
    assert all(len(listed) >= 5 for listed in tasks.values()) and share(spec, tasks["test"]) == 1.0
    assert share(spec, tasks["train"][:30], 0.5) < 1.0
    answers = [{task.args["gold"][0] for task in listed} for listed in tasks.values()]
    assert not any(one & other for one, other in itertools.combinations(answers, 2))


def test_a_renamed_tool_keeps_its_schema_and_its_state_apart():
    spec = EnvSpec(Both, sandboxed=True)
    assert spec.tools.names == ("answer", "count", "search") and spec.irreversible == {"count"} and spec.one_thread
    schema = next(s["function"] for s in spec.tools.schemas if s["function"]["name"] == "count")
    assert schema["parameters"]["properties"]["by"] == {"type": "integer", "description": "How far."}
    one = play(spec, TASK, [call("count", by=3)])
    before, twin = one.fingerprint(), one.copy()
    assert twin.step(call("count", by=4)).observation == "7" and one.fingerprint() == before != twin.fingerprint()
    assert one.step(call("answer", text="7")).terminated and one.verdict().success and not twin.verdict().success
    assert one.reset(TASK) == "?" and not one.terminated and one.step(call("count", by=1)).observation == "1"


def test_a_part_that_is_over_ends_the_episode():
    class Whole(Composition):
        """The part's own answer is taken over."""

        parts = {"records": Part(SQL, "query", hand_in="answer")}

    gold = {"database": "library-0", "question": "?", "gold": "SELECT COUNT(*) FROM books"}
    task = Task("t", "train", {"question": "?", "gold": ["x"], "records": gold})
    assert play(EnvSpec(Whole), task, [call("hand_in", sql=gold["gold"])]).terminated


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (
            {"a": Part(SearchQA, "search"), "b": Part(Counter, "search")},
            "of part 'b' is one of part 'a', too; rename it",
        ),
        ({"a": Part(SearchQA, "answer")}, "the class itself"),
    ],
)
def test_two_tools_of_one_name_are_refused(parts: dict[str, Any], told: str):
    with pytest.raises(TypeError, match=told):
        type("Clash", (Composition,), {"parts": parts})


def test_a_tool_that_is_not_there_is_refused():
    with pytest.raises(TypeError, match="SQL has no tool 'serach'"):
        Part(SQL, "serach")


def test_a_composition_with_a_part_that_runs_code_runs_code() -> None:
    from offline_agent.envs.math import Math

    class Calculating(Composition):
        parts = {"counter": Part(Counter, "search"), "python": Part(Math, "python")}

    assert EnvSpec(Calculating).runs_code and not EnvSpec(Both).runs_code
