"""The router of a pool of servers: whatever happens, load stays bounded, trees stay at home, nothing is forgotten."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from offline_agent.errors import ConfigError
from offline_agent.policies.server.router import Router

KEYS = st.integers(0, 40).map("task-{}".format)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Life(RuleBasedStateMachine):
    """Requests begin and end, servers fall and come back, time goes by."""

    @initialize(servers=st.integers(1, 6), bound=st.sampled_from([1.01, 1.25, 2.0]), most=st.sampled_from([None, 1, 4]))
    def start(self, servers: int, bound: float, most: int | None) -> None:
        self.clock = Clock()
        self.bound, self.most = bound, most
        self.names = [f"http://{n}/v1" for n in range(servers)]
        self.router = Router(self.names, bound=bound, most=most, backoff=1.0, longest=8.0, clock=self.clock)
        self.flying: list[tuple[str, int]] = []
        self.out: dict[str, float] = {}
        self.falls: Counter[str] = Counter()
        self.ejections: Counter[str] = Counter()

    @rule(key=KEYS)
    def ask(self, key: str) -> None:
        name = self.router.route(key)
        live = [name for name in self.names if name not in self.out]
        loads = {name: sum(flying == name for flying, _ in self.flying) for name in live}
        if name is None:
            assert all(self.most is not None and load >= self.most for load in loads.values())
            return
        assert name in live and (self.most is None or loads[name] < self.most)
        free = {name: load for name, load in loads.items() if self.most is None or load < self.most}
        assert loads[name] < self.bound * (sum(free.values()) + 1) / len(free)
        self.flying.append((name, self.router.begin(name)))

    def fell(self, name: str) -> None:
        self.out[name] = self.clock.now + min(8.0, 2.0 ** self.falls[name])
        self.falls[name] += 1

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), ok=st.booleans())
    def answer(self, data: st.DataObject, ok: bool) -> None:
        name, began = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        fresh = began == self.ejections[name] and name not in self.out
        assert self.router.end(name, ok, began) is (fresh and not ok)
        if fresh and ok:
            self.falls[name] = 0
        elif fresh:
            self.ejections[name] += 1
            self.fell(name)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), sound=st.booleans())
    def look(self, data: st.DataObject, sound: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.out)))
        if sound:
            self.router.restore(name)
            del self.out[name]
        else:
            assert not self.router.eject(name)
            self.fell(name)

    @rule(seconds=st.floats(0, 10))
    def time_goes_by(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def nothing_is_forgotten(self) -> None:
        if not hasattr(self, "router"):
            return
        flying = Counter(name for name, _ in self.flying)
        assert all(self.router.states[name].in_flight == flying[name] for name in self.names)
        assert self.router.live() == [name for name in self.names if name not in self.out]
        assert {name: self.router.states[name].ejections for name in self.names} == dict(self.ejections | Counter()) | {
            name: 0 for name in self.names if not self.ejections[name]
        }
        for name in self.names:
            assert self.router.wait(name) == pytest.approx(max(0.0, self.out.get(name, 0.0) - self.clock.now))


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase


@given(servers=st.integers(1, 64), keys=st.lists(KEYS, min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_a_tree_stays_at_home_and_moves_only_when_home_is_out(servers: int, keys: list[str]) -> None:
    names = [f"http://{n}/v1" for n in range(servers)]
    router = Router(names, clock=Clock())
    homes = {key: router.route(key) for key in keys}
    assert homes == {key: router.route(key) for key in keys}
    assert homes == {key: Router(names[::-1], clock=Clock()).route(key) for key in keys}  # whoever asks
    gone = homes[keys[0]]
    assert gone is not None
    router.eject(gone)
    if servers == 1:
        assert router.route(keys[0]) is None
        return
    for key, home in homes.items():
        assert router.route(key) != gone and (home == gone or router.route(key) == home)
    router.restore(gone)
    assert homes == {key: router.route(key) for key in keys}


def test_trees_are_spread_evenly() -> None:
    names = [f"http://node{n:02}:8000/v1" for n in range(8)]
    router = Router(names)
    homes = Counter(router.route(f"task-{n}") for n in range(4000))
    assert set(homes) == set(names) and max(homes.values()) < 1.15 * 500 and min(homes.values()) > 0.85 * 500


def test_a_full_home_sends_the_overflow_to_one_second_home() -> None:
    router = Router(list("abcdefgh"), bound=1.25)
    home = router.route("tree")
    assert home is not None
    for _ in range(2):
        router.begin(home)
    others = [router.route("tree") for _ in range(5)]
    assert set(others) == {router.route("tree", avoid={home})} and others[0] != home


def test_servers_to_avoid_are_avoided_where_there_are_others() -> None:
    router = Router(["a", "b"])
    assert {router.route(f"{n}", avoid={"a"}) for n in range(20)} == {"b"}
    assert router.route("x", avoid={"a", "b"}) in {"a", "b"}
    router.eject("b")
    assert router.route("x", avoid={"a"}) == "a"


def test_failures_from_before_the_fall_are_old_news() -> None:
    clock = Clock()
    router = Router(["a"], clock=clock)
    first, second = router.begin("a"), router.begin("a")
    assert router.end("a", False, first) and router.wait("a") == 1.0
    router.restore("a")
    assert not router.end("a", False, second) and router.live() == ["a"]
    assert router.end("a", False, router.begin("a")) and router.wait("a") == 2.0


@pytest.mark.parametrize(
    "keys",
    [{"bound": 1.0}, {"most": 0}, {"backoff": 0.0}],
)
def test_what_makes_no_sense_is_refused(keys: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Router(["a"], **keys)  # type: ignore[arg-type]
