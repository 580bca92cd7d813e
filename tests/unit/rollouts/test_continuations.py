"""Counterfactual roll-outs: what they depend on, and what of them is not judged."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import PolicyError
from offline_agent.policies.engines import InlineEngine
from offline_agent.records import Action, Step, ToolCall
from offline_agent.rollouts.episodes import Episodes, continuations
from tests.helpers.search import Guess, Paths, tasks

SPEC = EnvSpec(Paths)
TASK = tasks(SPEC, 4)[3]  # its code is 021


def steps(*doors: int) -> list[Step]:
    path, found = "", []
    for number in doors:
        path += str(number)
        action = Action(f"door {number}", call=ToolCall("door", {"number": number}))
        found.append(Step(action, f"door {number}", f"Behind you: {path}.", "tool"))
    return found


@contextmanager
def episodes(spec: EnvSpec = SPEC, policy: Any = None, limit: float = 20.0, **options: Any) -> Iterator[Episodes]:
    pool, engine = EnvPool(2, limit), (policy or Guess(skill=0.5)).engine()
    try:
        yield Episodes(spec, engine, pool, **{"seed": 1, "max_steps": 9, "temperature": 0.7, **options})
    finally:
        engine.close()
        pool.close()


def scores(made: Episodes, before: Sequence[Step], n: int = 16) -> list[float | None]:
    return [verdict.score for verdict in continuations(made, TASK, before, n)]


def test_they_depend_on_the_history_and_their_number_alone() -> None:
    with episodes() as made:
        found = {len(before): scores(made, before) for before in (steps(), steps(0), steps(0, 2))}
        assert scores(made, steps(0), 5) == found[1][:5]
    with episodes(policy=Guess(skill=0.5, jitter=0.001), in_flight=3) as again:
        assert {len(before): scores(again, before) for before in (steps(0, 2), steps(0), steps())} == found
    assert all(score is not None and score >= 1 / 3 for score in found[1]) and len(set(found[1])) > 1
    with episodes(seed=2) as other:
        assert scores(other, steps(0)) != found[1]


def test_histories_differ_by_what_they_did_and_not_by_chance() -> None:
    with episodes() as made:
        assert scores(made, steps(0, 2)) != scores(made, steps(2, 0))
        last = scores(made, steps(9, 9))
        assert set(last) == {0.0, 1 / 3} and scores(made, steps(8, 7)) == last


def test_one_that_uses_up_its_steps_scored_nothing() -> None:
    with episodes(max_steps=2) as made:
        verdicts = continuations(made, TASK, steps(0), 2)
    assert [(verdict.score, verdict.evidence["truncated"]) for verdict in verdicts] == [(0.0, True)] * 2


def test_a_history_that_went_differently_is_not_judged() -> None:
    with episodes() as made:
        for before in ([*steps(0, 2)[1:]], steps(0, 2, 1)):
            verdicts = continuations(made, TASK, before, 2)
            assert [verdict.score for verdict in verdicts] == [None, None]
            assert all("answered action" in str(verdict.error) for verdict in verdicts)


class Sticks(Paths):
    """A door in which one hangs."""

    gate = threading.Event()

    def door(self, number: int) -> str:
        """Go through a door, or do not.

        Args:
            number: Which door, 0 to 9.
        """
        if number == 9:
            self.gate.wait()
        return super().door(number)


def test_a_tool_that_hangs_ends_its_own_attempt_alone() -> None:
    with episodes(EnvSpec(Sticks), limit=0.2) as made:
        verdicts = continuations(made, TASK, steps(9), 2)
        assert [verdict.score for verdict in verdicts] == [None, None]
        assert all("no answer within" in str(verdict.error) for verdict in verdicts)
        assert None not in scores(made, steps(0, 2), 4)
    Sticks.gate.set()


def test_a_policy_that_never_answers_is_given_up() -> None:
    class Gone(Guess):
        def propose(self, requests: Any) -> list[Any]:
            return [PolicyError("gone") for _ in requests]

        def engine(self) -> Any:
            return InlineEngine(self)

    with episodes(policy=Gone(), in_flight=4) as made, pytest.raises(PolicyError, match="20 times in a row"):
        continuations(made, TASK, steps(0), 2)
