"""An outage of the policy is not taken for something about a history: no tree knows of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import JudgeError, PolicyError
from offline_agent.policies.base import Engine, ProposeRequest
from offline_agent.policies.engines import InlineEngine
from offline_agent.records import Action
from offline_agent.search.requests import PolicyCritic
from offline_agent.search.settings import SearchSettings
from tests.helpers.search import Guess, Paths, search, tasks
from tests.helpers.thread_engine import ThreadEngine

SPEC = EnvSpec(Paths)
SOME = tasks(SPEC, 3)
SETTINGS = SearchSettings(simulations=24, leaves_in_flight=4)
SHAPES = {
    "mcts": SETTINGS,
    "one at a time": SearchSettings(simulations=24, leaves_in_flight=1),
    "together": SearchSettings(simulations=24, leaves_in_flight=8),
    "best of n": SearchSettings(simulations=12, leaves_in_flight=4, algorithm="best_of_n"),
}


class Flaky(Guess):
    """Fails the requests that `fails` says, by their number and what they are.

    Args:
        fails: From the number of the request (from 0 on) and the request to whether it fails.
        threads: 0 = answers at once.
    """

    def __init__(self, fails: Callable[[int, ProposeRequest], bool], threads: int = 3) -> None:
        super().__init__()
        self.fails, self.threads, self.asked, self.failed = fails, threads, 0, 0
        self.lock = threading.Lock()

    def propose(self, requests: Any) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: ProposeRequest) -> Any:
        with self.lock:
            number, self.asked = self.asked, self.asked + 1
        if self.fails(number, request):
            self.failed += 1
            return PolicyError("all 2 servers are out")
        return super().propose([request])[0]

    def engine(self) -> Engine:
        return ThreadEngine(self, self.threads, max_batch=1) if self.threads else InlineEngine(self)


def cuts(logs: dict[str, list[dict[str, Any]]]) -> list[str]:
    return [record["cut"] for log in logs.values() for record in log if "cut" in record]


@pytest.mark.parametrize("trees", [1, 3])
@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_outage_leaves_the_trees_as_they_were(shape: str, threads: int, trees: int) -> None:
    settings, options = SHAPES[shape], {"workers": 2 if threads else 0, "trees_in_flight": trees}
    sound = search(SPEC, Guess(), settings, SOME, **options)
    for begins in (0, 7, 40):
        logs: dict[str, list[dict[str, Any]]] = {}
        with pytest.raises(PolicyError, match="failed 40 times in a row, .*servers are out.*Nothing is lost"):
            search(SPEC, Flaky(lambda n, _, at=begins: n >= at, threads), settings, SOME, logs=logs, **options)
        assert "policy" not in cuts(logs)
        assert all(log == sound.logs[name][: len(log)] for name, log in logs.items())
        again = search(SPEC, Guess(), settings, SOME, records=logs, **options)
        assert again.trees == sound.trees and again.logs == sound.logs


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_outage_that_passes_changes_nothing(shape: str, threads: int) -> None:
    options = {"workers": 2 if threads else 0, "trees_in_flight": 2}
    sound = search(SPEC, Guess(), SHAPES[shape], SOME, **options)
    for begins in (0, 5, 30):
        policy = Flaky(lambda n, _, at=begins: at <= n < at + 39, threads)
        run = search(SPEC, policy, SHAPES[shape], SOME, **options)
        assert run.trees == sound.trees and policy.failed == 39 and run.scheduler is not None
        assert run.scheduler.counts.policy_errors == 39 and run.scheduler.counts.requests == policy.asked


def hopeless(number: int, request: ProposeRequest) -> bool:
    """Return whether a history is one that the policy cannot answer: behind door 1."""
    last = request.context.action
    return last is not None and last.call is not None and last.call.arguments["number"] == 1


@pytest.mark.parametrize("leaves", [1, 4])
@pytest.mark.parametrize("threads", [0, 3])
def test_a_history_that_cannot_be_answered_ends_its_simulations_alone(threads: int, leaves: int) -> None:
    settings = SearchSettings(simulations=24, leaves_in_flight=leaves)
    policy = Flaky(hopeless, threads)
    run = search(SPEC, policy, settings, SOME, workers=2 if threads else 0, trees_in_flight=1)
    assert cuts(run.logs).count("policy") > 0
    for one in run.searches.values():
        assert one.tree is not None and one.tree.simulations > 0 and one.tree.stopped in ("simulations", "closed")
    assert run.trees == search(SPEC, Flaky(hopeless, 0), settings, SOME).trees  # whoever asks, and in whatever order
    told = [r for log in run.logs.values() for r in log if r.get("cut") == "policy"]
    assert all(record["error"] == "all 2 servers are out" for record in told)


class Ranks(Flaky):
    """Also ranks what it is shown, by the digits of a seed."""

    def act(self, context: Any, seed: int, temperature: float | None) -> Action:
        if "Candidates:" not in (context.observation or ""):
            return super().act(context, seed, temperature)
        count = context.observation.split("Candidates:")[1].count(". ")
        numbers = sorted(range(1, count + 1), key=lambda number: (seed * number) % 97)
        return Action(", ".join(map(str, numbers)))


@pytest.mark.parametrize("leaves", [1, 4])
def test_a_critic_that_the_outage_silenced_is_asked_again(leaves: int) -> None:
    settings = SearchSettings(simulations=24, leaves_in_flight=leaves)

    def run(fails: Callable[[int, ProposeRequest], bool], **options: Any) -> Any:
        policy = Ranks(fails)
        engine = policy.engine()
        policy.engine = lambda: engine  # type: ignore[method-assign]
        options |= {"critic": PolicyCritic(engine), "workers": 2, "trees_in_flight": 2}
        return search(SPEC, policy, settings, SOME, **options)

    sound = run(lambda n, _: False)
    assert any("critic" in record for log in sound.logs.values() for record in log)
    assert run(lambda n, _: 20 <= n < 50).trees == sound.trees
    logs: dict[str, list[dict[str, Any]]] = {}
    with pytest.raises(PolicyError, match="Nothing is lost"):
        run(lambda n, _: n >= 20, logs=logs)
    assert run(lambda n, _: False, records=logs).trees == sound.trees
    mute = run(lambda n, request: "Candidates:" in (request.context.observation or ""))  # the critic alone fails
    assert not any("critic" in record for log in mute.logs.values() for record in log)
    assert any("critic" in text for text in mute.scheduler.counts.fault_examples)


def test_a_critic_that_fails_by_itself_has_no_opinion_and_is_not_asked_again() -> None:
    asked: list[int] = []

    def broken(context: Any, actions: Any, seed: int) -> list[float | None]:
        asked.append(seed)
        if len(asked) == 1:
            return [None] * len(actions)
        raise JudgeError("no idea")

    run = search(SPEC, Guess(), SETTINGS, SOME, critic=broken)
    assert len(asked) == sum("drawn" in record for log in run.logs.values() for record in log) > 0


def test_what_is_no_answer_at_all_is_a_failure() -> None:
    class Mumbles(Guess):
        def propose(self, requests: Any) -> list[Any]:
            return ["mumble" for _ in requests]

        def engine(self) -> Engine:
            return ThreadEngine(self)

    with pytest.raises(PolicyError, match="answered with a str, not with Proposals"):
        search(SPEC, Mumbles(), SETTINGS, SOME)
