"""The simulated cluster's arithmetic: virtual time, one server as the serial sum, nothing lost, nothing twice."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = str(Path(__file__).parents[3] / "benchmarks")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    sys.path.insert(0, BENCHMARKS)
    try:
        yield importlib.import_module("_cluster_simulation")
    finally:
        sys.path.remove(BENCHMARKS)


def samples(cluster: Any, seconds: float | None = None, count: int = 200) -> Any:
    rng = random.Random(0)
    return [
        cluster.Sample(
            rng.choice([10, 40, 150]), rng.choice([0, 100]), rng.randrange(4, 40),
            rng.uniform(0.2, 2.0) if seconds is None else seconds, rng.randrange(4),
        )
        for _ in range(count)
    ]  # fmt: skip


def setting(cluster: Any, servers: int, **more: Any) -> Any:
    wanted = {"slots": 4, "trees": 6 * servers, "leaves": 2, "tasks": 18 * servers, "simulations": 6}
    return cluster.Setting(servers, **{**wanted, "tool_seconds": 0.1, **more})


def test_events_happen_in_order_at_their_own_time(cluster: Any) -> None:
    clock, seen = cluster.Clock(), []
    for seconds in (3.0, 1.0, 2.0, 1.0):
        clock.after(seconds, lambda: seen.append(clock.now))
    clock.after(1.5, lambda: clock.after(0.25, lambda: seen.append(clock.now)))
    clock.advance(2.5)
    assert seen == [1.0, 1.0, 1.75, 2.0] and clock.now == 2.5
    assert clock.step() and clock.now == 3.0 and not clock.step()


def test_one_slot_takes_the_sum_of_its_samples(cluster: Any) -> None:
    one = setting(cluster, 1, slots=1, trees=1, leaves=1, tasks=3, tool_seconds=0.0)
    found = cluster.simulate(one, cluster.Latencies(samples(cluster, 0.5)))
    assert found.whole_seconds == pytest.approx(0.5 * found.whole_samples)
    assert found.idle == pytest.approx((0.0,))
    slow = cluster.simulate(replace(one, tool_seconds=0.25), cluster.Latencies(samples(cluster, 0.5)))
    assert slow.whole_samples == found.whole_samples and slow.trees == found.trees
    assert slow.idle[0] > 0.2  # nobody generates while the only simulation waits for its tool


def test_the_driver_is_one_thread(cluster: Any) -> None:
    one = setting(cluster, 1, slots=4, trees=4, leaves=1, tasks=8, tool_seconds=0.0, driver_seconds=2.0)
    found = cluster.simulate(one, cluster.Latencies(samples(cluster, 0.01)))
    assert found.driver > 0.95 and found.whole_seconds >= 2.0 * 8


def test_every_request_is_answered_once_however_many_servers(cluster: Any) -> None:
    latencies = cluster.Latencies(samples(cluster))
    found = {n: cluster.simulate(setting(cluster, n, tasks=36, trees=12), latencies) for n in (1, 2, 3)}
    assert found[1].asked == found[1].answered > 36
    for n in (2, 3):
        assert found[n].asked == found[n].answered == found[1].asked
        assert found[n].trees == found[1].trees  # who is faster changes no tree
    assert len(found[1].trees) == 36


@pytest.mark.parametrize("more", [{}, {"most": 8}, {"routing": "random"}, {"trees": 2}, {"room": 200}])
def test_shares_are_shares_and_efficiency_is_at_most_one(cluster: Any, more: dict[str, Any]) -> None:
    latencies = cluster.Latencies(samples(cluster, 0.7))  # all samples alike: one slot can do no better than the other
    one = cluster.simulate(setting(cluster, 1, **{**more, "trees": 6}), latencies)
    found = cluster.simulate(setting(cluster, 4, **more), latencies)
    assert found.rate <= 4 * 4 / 0.7 * (1 + 1e-9)  # slots over seconds is all there is
    assert found.rate / (4 * max(one.rate, 4 / 0.7)) <= 1 + 1e-9
    for share in (*found.idle, *found.hits, found.driver):
        assert -1e-9 <= share <= 1
    assert len(found.idle) == len(found.hits) == 4


def test_too_few_trees_leave_servers_idle(cluster: Any) -> None:
    latencies = cluster.Latencies(samples(cluster))
    few, many = (cluster.simulate(setting(cluster, 4, trees=n), latencies) for n in (2, 24))
    assert sum(few.idle) / 4 > 0.5 > 0.2 > sum(many.idle) / 4


def test_histories_go_to_who_has_them(cluster: Any) -> None:
    latencies = cluster.Latencies(samples(cluster))
    affine, chance = (
        cluster.simulate(setting(cluster, 4, most=16, routing=routing), latencies) for routing in ("affine", "random")
    )
    assert sum(affine.hits) > 1.05 * sum(chance.hits)


def test_a_cache_forgets_the_tree_used_longest_ago(cluster: Any) -> None:
    server = cluster.Server(1, room=100)
    first = [((), 40), (("a",), 60)]
    assert server.lookup("one", first) == 0
    assert server.lookup("one", [*first, (("a", "b"), 70)]) == 60
    assert server.held == 70
    assert server.lookup("two", [((), 50)]) == 0  # 120 tokens: the first tree has to go
    assert server.held == 50 and server.lookup("two", [((), 50)]) == 50
    assert server.lookup("one", first) == 0
    server = cluster.Server(1, room=100)
    for tree in ("one", "two", "one", "three"):
        server.lookup(tree, [((), 45)])
    assert list(server.trees) == ["one", "three"]


def test_seconds_are_those_of_like_lengths(cluster: Any) -> None:
    measured = [cluster.Sample(10, 0, 5, 1.0, 0), cluster.Sample(500, 0, 5, 9.0, 0), cluster.Sample(10, 0, 90, 4.0, 0)]
    latencies, rng = cluster.Latencies(measured), random.Random(0)
    drawn = [latencies.draw(rng, computed, generated) for computed, generated in ((9, 4), (400, 6), (12, 80))]
    assert drawn == [1.0, 9.0, 4.0]
