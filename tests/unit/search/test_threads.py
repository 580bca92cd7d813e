"""One thread opens, steps, copies and closes an environment: a plain `sqlite3.connect` works wherever it is played."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.preferences.replayer import Replayer
from offline_agent.records import Action, ToolCall
from offline_agent.rollouts.episodes import AttemptRequest, Episodes
from offline_agent.search.settings import SearchSettings
from tests.helpers.search import Guess, Run, search, tasks
from tests.helpers.threads import CopiedTodo, Todo

SETTINGS = SearchSettings(simulations=24, leaves_in_flight=4)


@pytest.fixture(autouse=True)
def _nothing_closed_elsewhere() -> Any:
    Todo.closed_elsewhere.clear()
    yield
    assert Todo.closed_elsewhere == []


def lost(run: Run) -> list[str]:
    found = [one.tree for one in run.searches.values()]
    return [str(edge.quarantined) for tree in found if tree is not None for edge in tree.edges if edge.quarantined]


@pytest.mark.parametrize("cls", [Todo, CopiedTodo])
def test_an_environment_bound_to_its_thread_is_searched_without_a_loss(cls: type) -> None:
    spec = EnvSpec(cls)
    expected = search(spec, Guess(), SETTINGS, tasks(spec, 6))
    got = search(spec, Guess(jitter=0.001), SETTINGS, tasks(spec, 6), workers=4, live_states=3)
    assert lost(expected) == lost(got) == []
    assert got.trees == expected.trees
    assert got.counts.mismatches == 0


def test_a_tool_that_hangs_costs_its_branch_and_the_tree_goes_on_in_another_thread() -> None:
    class Hangs(CopiedTodo):
        def door(self, number: int) -> str:
            """Finish an item.

            Args:
                number: Which item.
            """
            if number == 1 and not self._done():
                time.sleep(2.5)
            return super().door(number)

    spec = EnvSpec(Hangs)
    run = search(spec, Guess(), SETTINGS, tasks(spec, 1), workers=2, time_limit=0.6)
    reasons = set(lost(run))
    assert len(reasons) == 1 and "no answer within 0.6 s" in reasons.pop()
    (one,) = run.searches.values()
    assert one.tree is not None and one.tree.simulations > 10


@pytest.mark.parametrize("replay_only", [False, True])
def test_attempts_and_replays_keep_to_one_thread(replay_only: bool) -> None:
    spec = EnvSpec(CopiedTodo)
    spec.replay_only = replay_only
    some = tasks(spec, 6)
    engine, pool = Guess(jitter=0.001).engine(), EnvPool(3, 5.0)
    episodes = Episodes(spec, engine, pool, max_steps=5, in_flight=4)
    asks = [AttemptRequest(task, "sampled", number) for task in some for number in range(2)]
    played = list(episodes.play(asks))
    assert len(played) == 12 and all(attempt.success is not None for attempt in played)
    engine.close()
    pool.close()
    replayer = Replayer(spec, seconds=5.0)
    doors = [Action("", call=ToolCall("door", {"number": n})) for n in (1, 2, 3)]
    for task in some:
        assert replayer.run(task, doors).steps[-1].observation == "Finished: 123"
    replayer.close()


def test_a_pool_makes_at_most_its_number_of_jobs_at_once_over_all_lanes_and_ends_their_threads() -> None:
    pool, answers = EnvPool(2, 5.0), SimpleQueue[Any]()
    lock, now, most = threading.Lock(), [0], [0]
    before = threading.active_count()

    def job() -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1
        return threading.get_ident()

    lanes = [pool.lane(True) for _ in range(5)]
    for lane in lanes:
        for _ in range(4):
            lane.submit(job, lambda ident, lane=lane: answers.put((id(lane), ident)))
    got = {answers.get(timeout=20) for _ in range(20)}
    assert len(got) == 5 and len({ident for _, ident in got}) == 5  # each lane its own thread
    assert most[0] <= 2
    pool.close()
    until = time.monotonic() + 10
    while threading.active_count() > before - 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before - 2
