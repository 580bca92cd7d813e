"""Routing over servers: tasks stay where they are cached, loads are bounded, and what is out gets nothing."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_agent.policies.server.router import SHARE, Router

NAMES = st.integers(1, 6).map(lambda count: [f"server {n}" for n in range(count)])


@given(NAMES, st.lists(st.text(max_size=6), min_size=1, max_size=20), st.data())
def test_a_task_stays_at_home_and_moves_only_when_home_is_out(
    names: list[str], keys: list[str], data: st.DataObject
) -> None:
    router = Router(names, 32)
    homes = {key: router.choose(key) for key in keys}
    gone = data.draw(st.sampled_from(names))
    router.states[gone].out = "dead"
    for key, home in homes.items():
        now = router.choose(key)
        assert now == home if home != gone else now != gone
        assert len(names) == 1 or router.choose(key, {str(now)}) != now or len(router.live()) == 1
    router.states[gone].out = None
    assert {key: router.choose(key) for key in keys} == homes


@given(NAMES, st.integers(1, 9), st.lists(st.text(max_size=3), max_size=60))
def test_no_server_has_more_than_its_share_and_all_are_filled(names: list[str], most: int, keys: list[str]) -> None:
    router, sent = Router(names, most), 0
    for key in keys:
        name = router.choose(key)
        assert (name is None) == (sent == most * len(names))
        if name is not None:
            sent += 1
            router.states[name].in_flight += 1
            assert router.states[name].in_flight <= math.ceil(SHARE * sent / len(names))


def test_tasks_stay_at_home_where_every_server_is_busy() -> None:
    rng, names = random.Random(0), [f"server {n}" for n in range(8)]
    router, homes, sent = Router(names, 32), Router(names, 32), []
    kept = []
    for _ in range(2000):
        while (name := router.choose(key := f"task {rng.randrange(300)}")) is not None:
            router.states[name].in_flight += 1
            sent.append(name)
            kept.append(name == homes.choose(key))
        assert len(sent) == 32 * len(names)
        router.states[sent.pop(rng.randrange(len(sent)))].in_flight -= 1
    assert sum(kept[1000:]) > 0.75 * len(kept[1000:])


@pytest.mark.parametrize("most", [1, 2, 3])
def test_few_requests_a_server_are_spread_evenly(most: int) -> None:
    router = Router(["a", "b", "c"], most)
    while (name := router.choose("task")) is not None:
        router.states[name].in_flight += 1
    assert [state.in_flight for state in router.states.values()] == [most] * 3


def test_tasks_are_spread_evenly() -> None:
    router = Router(["a", "b", "c"], 32)
    found = Counter(router.choose(f"task {number}") for number in range(600))
    assert min(found.values()) > 150
