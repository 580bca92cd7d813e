from __future__ import annotations

import pytest

from offline_agent.errors import PolicyError, PolicyMismatch
from offline_agent.policies.base import Outage, ProposeRequest
from offline_agent.records import Context, Task


def request(seed: int) -> ProposeRequest:
    return ProposeRequest(Context(Task("t", "shop", {}), "", (), "begin"), (seed,))


def test_a_failure_is_held_back_until_something_sent_later_was_answered() -> None:
    outage: Outage[str] = Outage(9)
    sent = outage.answers
    assert outage.holds("first", sent) and outage.holds("second", sent) and len(outage) == 2
    assert outage.answered(request(1)) == ["first", "second"] and len(outage) == 0
    assert not outage.holds("sent before that answer", sent) and outage.holds("sent after it", outage.answers)
    assert outage.release() == ["sent after it"] and outage.release() == []


def test_failures_in_a_row_are_counted_across_what_is_held_and_released() -> None:
    outage: Outage[str] = Outage(3)
    for _ in range(4):
        outage.failed("once")
        outage.release()
        outage.failed("twice")
        outage.answered(request(1))
    outage.failed("a")
    outage.failed("b")
    with pytest.raises(PolicyError, match="failed 3 times in a row, the last time with: c. Nothing is lost"):
        outage.failed("c")
    outage.forget()
    outage.failed("a")
    with pytest.raises(PolicyMismatch, match="another model"):
        outage.failed(PolicyMismatch("another model"))


def test_what_shows_that_a_policy_is_there_was_answered_before_and_is_never_the_same_question() -> None:
    outage: Outage[str] = Outage(9)
    assert outage.probe() is None
    outage.answered(request(7))
    seeds = set()
    for _ in range(5):
        outage.failed("gone")
        probe = outage.probe()
        assert probe is not None and outage.known is not None and probe.context is outage.known.context
        seeds.add(probe.seeds)
    assert len(seeds) == 5
