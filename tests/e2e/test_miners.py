"""Mining in several processes: the same bytes, and an end for all of them whatever happens to one."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.test_build_prefs import ALL, ENV, build, built, command, digests
from tests.helpers import forked

KEYS = ["tasks.n=6", "search.simulations=12"]

ENVIRONMENTS = """
import functools, multiprocessing, os, time
from offline_agent.envs.shop import Shop

def elsewhere():
    return multiprocessing.parent_process() is not None

if elsewhere() and os.environ.get("ABSENT"):
    raise ImportError("only the command's own process can have this")

class Plain(Shop):
    replay_only = bool(os.environ.get("REPLAY_ONLY"))

class Counting(Shop):
    calls = 0

    def get_reward(self):
        Counting.calls += 1
        return Counting.calls % 997 / 997

class Bound(Shop):
    def __deepcopy__(self, memo):
        raise TypeError("it holds a socket")

class Deadly(Shop):
    @functools.wraps(Shop.reset)
    def reset(self, **task):
        if elsewhere() and os.environ.get("DEADLY"):
            os._exit(9)
        return super().reset(**task)

class Slow(Shop):
    @functools.wraps(Shop.reset)
    def reset(self, **task):
        if elsewhere():
            time.sleep(2)
        return super().reset(**task)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("whole") / "run", *KEYS)


def test_the_number_of_processes_changes_nothing(whole: Path, tmp_path: Path) -> None:
    run_dir = built(tmp_path / "run", *KEYS, "pairs.miners=2")
    assert digests(run_dir, *ALL) == digests(whole, *ALL)
    assert (run_dir / "quarantine.jsonl").read_bytes() == (whole / "quarantine.jsonl").read_bytes()


@pytest.mark.parametrize("replay_only", [False, True])
def test_mining_makes_at_most_as_many_calls_as_the_search(
    mine: Path, replay_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if replay_only:
        monkeypatch.setitem(ENV, "REPLAY_ONLY", "1")
    summary = json.loads((built(mine, *KEYS, "env=mine:Plain", "pairs.replay_budget=1",
                          "pairs.kinds=[step,trajectory,hindsight,minimal]") /
                          "summary.json").read_text())  # fmt: skip
    assert 0 < summary["replayed_calls"] <= summary["tool_calls"] and summary["pairs_total"] > 0
    again = summary["rejudged"]
    assert 0 < again["judged"] <= again["verdicts"] and again["disagreed"] == again["broken"] == 0


def test_trees_whose_verdicts_do_not_repeat_give_nothing_and_the_summary_says_so(mine: Path) -> None:
    run_dir = built(mine, *KEYS, "env=mine:Counting")
    summary = json.loads((run_dir / "summary.json").read_text())
    again, trees = summary["rejudged"], summary["quarantined"]["trees"]
    assert again["disagreed"] >= trees == summary["tasks"]
    assert summary["pairs_total"] == summary["filtered"] == summary["trajectories"] == 0
    entries = [json.loads(line) for line in (run_dir / "quarantine.jsonl").read_text().splitlines()]
    assert sum(entry["kind"] == "tree" and "did not repeat" in entry["reason"] for entry in entries) == trees


def test_trees_that_were_all_there_are_mined_by_replay_where_copies_fail(mine: Path) -> None:
    def found() -> tuple[object, object]:
        run_dir = built(mine, *KEYS, "env=mine:Bound")
        return digests(run_dir, *ALL), json.loads((run_dir / "summary.json").read_text())["rejudged"]

    before = found()
    assert found() == before  # a command that finds every tree mines them again


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(ENVIRONMENTS)
    monkeypatch.setitem(ENV, "PYTHONPATH", os.pathsep.join([str(tmp_path), ENV["PYTHONPATH"]]))
    return tmp_path / "run"


def test_a_process_that_dies_ends_the_run_and_loses_nothing(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [*KEYS, "env=mine:Deadly"]
    monkeypatch.setitem(ENV, "DEADLY", "1")
    done = build(mine, *keys, "pairs.miners=2")
    assert done.returncode == 1 and "a process that builds pairs died" in done.stderr
    assert "Traceback" not in done.stderr and "pairs.miners" in done.stderr
    assert not (mine / "preferences").exists() or not list((mine / "preferences").glob("*.parquet"))
    monkeypatch.delitem(ENV, "DEADLY")
    built(mine, *keys, "pairs.miners=2")
    assert not list(mine.rglob(".*.tmp"))


def test_what_a_process_cannot_have_is_said(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENV, "ABSENT", "1")
    done = build(mine, *KEYS, "env=mine:Deadly", "pairs.miners=2")
    assert done.returncode != 0 and "only the command's own process can have this" in done.stderr
    assert "Traceback" not in done.stderr


def mines(process: psutil.Process) -> bool:
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a short one: it has ended since
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_the_command(mine: Path, number: signal.Signals) -> None:
    process = forked.Process(command(mine, *KEYS, "env=mine:Slow", "pairs.miners=2"), env=ENV)
    whole, others = psutil.Process(process.pid), []
    until = time.monotonic() + 120
    while len(others) < 2 and time.monotonic() < until:
        time.sleep(0.1)
        others = [child for child in whole.children(recursive=True) if mines(child)]
    assert len(others) == 2
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    _, alive = psutil.wait_procs(others, timeout=60)
    assert not alive
    if number == signal.SIGTERM:
        assert process.returncode != 0 and "To go on" in error and "Traceback" not in error, error
