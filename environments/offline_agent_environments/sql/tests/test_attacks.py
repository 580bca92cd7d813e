"""Statements that attack the database, the machine or the verifier: each is refused or stopped, and nothing changes."""

from __future__ import annotations

import random
import resource
import sqlite3
from pathlib import Path

import pytest

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.records import Task
from offline_agent_environments.sql.tests.attacks import COUNTED, REFUSED, STOPPED, WRITES
from tests.helpers.played import call


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("attacked") / "d.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("create table Artist (Id integer primary key, Name text)")
        connection.executemany("insert into Artist values (?, ?)", [(i, f"A{i}") for i in range(30)])
    connection.close()
    return path


def _episode(path: Path, **args: bool) -> Episode:
    episode = EnvSpec.load("sql", {"database": str(path), **args}).open()
    episode.reset(Task("t", "train", {"database": str(path), "question": "?", "gold": "SELECT Name FROM Artist"}))
    return episode


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("tool", ["query", "answer"])
def test_what_is_no_reading_is_refused(path: Path, tool: str, writable: bool) -> None:
    before, there = path.read_bytes(), sorted(path.parent.iterdir())
    episode = _episode(path, writable=writable)
    for statement in [*REFUSED, *(() if writable else WRITES)]:
        result = episode.step(call(tool, sql=statement.replace("{0}", str(path.parent))))
        assert result.fault in ("tool_error", "limit") and not result.terminated, (statement[:80], result)
        assert episode.step(call("query", sql="select count(*) from Artist")).observation.startswith("count(*)\n30\n")
    assert path.read_bytes() == before and sorted(path.parent.iterdir()) == there and episode.verdict().score == 0.0


def test_what_takes_too_much_is_stopped_and_the_next_query_runs(path: Path) -> None:
    episode = _episode(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of the tests before, in the same process
    for statement, limit in STOPPED.items():
        result = episode.step(call("query", sql=statement))
        assert result.fault == "limit", (statement, result)
        assert any(word in result.observation for word in limit.strip("()").split("|")), result.observation
        assert episode.step(call("query", sql="select count(*) from Artist")).fault is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


def test_an_endless_answer_is_no_answer(path: Path) -> None:
    episode = _episode(path)
    assert episode.step(call("answer", sql=f"{COUNTED} select x from c")).observation.endswith("10000 rows")
    large = f"{COUNTED} select hex(zeroblob(49000)) from c"
    assert episode.step(call("answer", sql=large)).observation.endswith("more than 64 MiB")
    assert not episode.terminated


def test_a_written_copy_cannot_grow_without_bound(path: Path) -> None:
    episode = _episode(path, writable=True)
    doubling = "insert into Artist (Name) select hex(zeroblob(40000)) from Artist"
    faults = [episode.step(call("query", sql=doubling)).fault for _ in range(12)]
    assert faults[-1] is not None
    assert episode.step(call("query", sql="select count(*) from Artist")).fault is None
    for _ in range(8):
        episode.step(call("query", sql=f"insert into Artist (Name) {COUNTED} select null from c limit 100000"))
        episode = episode.copy()
    shown = episode.step(call("query", sql="select count(*) < 300000 from Artist")).observation
    assert shown.endswith("\n1\n(1 row)")  # all rows are read into Python at each look at the state


def test_a_policy_that_attacks_at_random_scores_nothing(path: Path) -> None:
    rng, statements = random.Random(1), [*REFUSED, *WRITES, "select zeroblob(1000000000)", "select 'A1'", ""]
    for _ in range(20):
        episode = _episode(path)
        for _ in range(8):
            if not episode.terminated:
                tool = rng.choice(("query", "answer"))
                episode.step(call(tool, sql=rng.choice(statements).replace("{0}", str(path.parent))))
        assert episode.verdict().score == 0.0
    assert not (path.parent / "other.sqlite").exists()
