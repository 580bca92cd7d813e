"""Requests that wait for a server: nobody is forgotten or overtaken for ever, and trees stay where they are cached."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from offline_agent.policies.server.router import AHEAD, Router, ServerQueue, WaitingRequest


class Waits(RuleBasedStateMachine):
    """Requests come, go to servers, end or fail there; servers fall and come back."""

    @initialize(servers=st.integers(1, 4), most=st.integers(1, 2))
    def start(self, servers: int, most: int) -> None:
        self.names = [f"server {n}" for n in range(servers)]
        self.router = Router(self.names, most=most, clock=lambda: 0.0)
        self.line = ServerQueue(self.router)
        self.flying: list[tuple[str, WaitingRequest]] = []
        self.failed: dict[int, set[str]] = {}
        self.passed: dict[int, int] = {}
        self.waiting: list[WaitingRequest] = []

    @rule(tree=st.integers(0, 5))
    def come(self, tree: int) -> None:
        failed: set[str] = set()
        waiter = self.line.waiter(f"tree {tree}", failed)
        self.failed[waiter.number] = failed
        self.line.join(waiter)
        self.line.join(waiter)  # a second time changes nothing
        self.waiting.append(waiter)

    @rule()
    def go(self) -> None:
        one = self.line.next()
        if one is None:
            return
        for other in self.waiting:
            if other is not one:
                assert self.line.take(other) is None
        room = self.router.room()
        name = self.line.take(one)
        assert name in room
        if name in one.avoid:  # only where there is no other, or it has waited long enough
            assert set(self.router.live()) <= set(one.avoid) or one.overtaken >= AHEAD * len(self.names)
        for other in self.waiting:
            if other.number < one.number:
                self.passed[other.number] = self.passed.get(other.number, 0) + 1
        self.waiting.remove(one)
        self.router.begin(name)
        self.flying.append((name, one))

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), ok=st.booleans())
    def end(self, data: st.DataObject, ok: bool) -> None:
        name, waiter = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        self.router.end(name, True)
        if not ok:  # it is tried elsewhere, and is not the last in line again
            self.failed[waiter.number].add(name)
            self.line.join(waiter)
            self.waiting = sorted([*self.waiting, waiter], key=lambda each: each.number)

    @rule(data=st.data())
    def fall_or_come_back(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.names))
        if name in self.router.live():
            self.router.eject(name)
        else:
            self.router.restore(name)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def lose_patience(self, data: st.DataObject) -> None:
        waiter = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.line.leave(waiter)
        self.line.leave(waiter)

    @invariant()
    def nobody_is_forgotten_or_overtaken_without_end(self) -> None:
        if not hasattr(self, "router"):
            return
        assert self.line.waiting == self.waiting
        assert all(passed <= AHEAD * len(self.names) for passed in self.passed.values())
        able = [each for each in self.waiting if self.router.route(each.key, each.avoid) is not None]
        if able[:1] == self.waiting[:1]:
            assert (self.line.next() is None) is not bool(able)


Waits.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestWaits = Waits.TestCase


@pytest.mark.parametrize("servers", [2, 4, 8])
def test_a_request_is_overtaken_four_times_for_each_server_and_not_once_more(servers: int) -> None:
    names = [f"server {n}" for n in range(servers)]
    router = Router(names, most=1)
    line = ServerQueue(router)
    free, full = names[0], names[1:]
    for name in full:
        router.begin(name)
    keys = (f"tree {n}" for n in range(10**6))
    stranger = line.waiter(next(key for key in keys if router.home(key) != free))
    line.join(stranger)
    overtaken = 0
    while True:
        at_home = next(key for key in keys if router.home(key) == free)
        line.join(line.waiter(at_home))
        one = line.next()
        assert one is not None
        assert line.take(one) == free
        if one is stranger:
            break
        overtaken += 1
    assert overtaken == stranger.overtaken == AHEAD * servers


def test_what_is_beyond_the_look_ahead_is_not_seen_and_no_server_is_idle() -> None:
    router = Router(["a", "b"], most=1)
    line = ServerQueue(router)
    router.begin("b")
    keys = [f"tree {n}" for n in range(200)]
    at_a, at_b = ([key for key in keys if router.home(key) == name] for name in "ab")
    waiters = [line.waiter(key) for key in [*at_b[: 2 * AHEAD], at_a[0]]]
    for waiter in waiters:
        line.join(waiter)
    assert line.next() is waiters[0] and line.take(waiters[0]) == "a"  # nobody near is at home there
    assert line.next() is waiters[-1] and line.take(waiters[-1]) == "a"  # now it is near enough


def share_at_home(servers: int, trees: int, seed: int, answers: int = 3000) -> float:
    """Return the share of requests that went to their tree's home, all servers being full all the time."""
    rng = random.Random(seed)
    names = [f"server {n}" for n in range(servers)]
    router = Router(names, most=8)
    line = ServerQueue(router)
    outside = deque(f"tree {rng.randrange(trees)}" for _ in range(answers + 16 * servers))
    flying: list[tuple[str, str]] = []
    home = 0
    for _ in range(answers):
        while outside and len(line.waiting) < AHEAD * servers:  # as many threads wait
            line.join(line.waiter(outside.popleft()))
        while (one := line.next()) is not None:
            name = line.take(one)
            assert name is not None
            router.begin(name)
            flying.append((name, one.key))
        name, key = flying.pop(rng.randrange(len(flying)))
        router.end(name, True)
        home += router.home(key) == name
    return home / answers


@pytest.mark.parametrize("servers, trees", [(2, 16), (4, 32), (8, 64)])
def test_trees_stay_where_they_are_cached_though_all_servers_are_full(servers: int, trees: int) -> None:
    assert share_at_home(servers, trees, seed=servers) > 0.7  # first come, first served: one in so many servers


@given(seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_one_server_is_first_come_first_served(seed: int) -> None:
    rng = random.Random(seed)
    line = ServerQueue(Router(["a"], most=4))
    waiters = [line.waiter(f"tree {rng.randrange(5)}") for _ in range(20)]
    for waiter in waiters:
        line.join(waiter)
    assert [line.take(waiter) for waiter in waiters] == ["a"] * 20
