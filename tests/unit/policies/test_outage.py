from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from offline_agent.errors import PolicyError, PolicyMismatch
from offline_agent.policies.base import ProposeRequest
from offline_agent.policies.outage import RETRIES, RequestQueue, SentRequest
from offline_agent.records import Context, Task


def request(seed: int) -> ProposeRequest:
    return ProposeRequest(Context(Task("t", "shop", {}), "", (), "begin"), (seed,))


class Policy:
    """Keeps the requests of a queue until they are answered, in the order in which they were sent."""

    def __init__(self, most: int = 9, answered_before: bool = False) -> None:
        self.sent: list[tuple[SentRequest[str], Any]] = []
        self.asked: list[tuple[Any, Callable[[Any], None]]] = []
        self.queue: RequestQueue[str] = RequestQueue(
            lambda asked, done: self.asked.append((asked, done)), lambda sent, answer: self.sent.append((sent, answer)),
            most, answered_before,
        )  # fmt: skip

    def answer(self, take: Callable[[SentRequest[str], Any], Any], answer: Any) -> Any:
        """Answer the oldest request; return who may go on."""
        self.asked.pop(0)[1](answer)
        return take(*self.sent.pop(0))

    def fail(self, fault: Any = "gone") -> Any:
        return self.answer(self.queue.failed, fault)


def test_a_failure_counts_only_where_something_else_was_answered_and_is_reported_after_some() -> None:
    policy = Policy()
    queue = policy.queue
    queue.send("a", request(0))
    for number in range(1 + RETRIES):
        queue.send("b", request(1 + number))
        assert policy.fail() == [] and queue.held
        assert queue.go_on() == [] and len(policy.asked) == 1  # the other may show whether the policy answers
        given_up = [("a", "gone")] if number == RETRIES else []
        assert policy.answer(queue.answered, "fine") == [*given_up, ("b", "fine")] and not queue.held
    assert not policy.asked
    queue.send("a", request(0))
    assert policy.answer(queue.settled, "full") == [("a", "full")]


def test_failures_in_a_row_end_the_run_and_a_mismatch_does_at_once() -> None:
    policy = Policy(3)
    queue = policy.queue
    for asker in "abc":
        queue.send(asker, request(1))
    policy.fail(), policy.fail(), policy.answer(queue.answered, "fine")
    policy.fail(), policy.fail(), queue.go_on()
    with pytest.raises(PolicyError, match="failed 3 times in a row, the last time with: worse. Nothing is lost"):
        policy.fail("worse")
    queue.forget()
    with pytest.raises(PolicyMismatch, match="another model"):
        queue.send("a", request(1))
        policy.asked = policy.asked[-1:]
        policy.fail(PolicyMismatch("another model"))


def test_what_shows_that_a_policy_is_there_is_never_the_same_question() -> None:
    policy = Policy(99)
    queue = policy.queue
    queue.expect(request(7))
    queue.send("a", request(1))
    seeds = set()
    for _ in range(5):
        while policy.asked:
            assert policy.fail() == []
        assert queue.go_on() == []
        (again, _), (probe, _) = policy.asked
        assert again.seeds == (1,)
        seeds.add(probe.seeds)
    assert len(seeds) == 5


def test_what_a_policy_that_answered_earlier_fails_at_once_is_no_outage() -> None:
    policy = Policy(answered_before=True)
    policy.queue.send("a", request(1))
    policy.fail()
    assert policy.queue.go_on() == [("a", "gone")]


def test_answers_to_what_was_dropped_are_ignored() -> None:
    policy = Policy()
    policy.queue.send("a", request(1))
    policy.queue.forget()
    assert policy.answer(policy.queue.answered, "late") == []
