"""Mining with replays: what it costs, and what it makes of verdicts that do not repeat."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.e2e.test_build_prefs import ALL, ENV, built, digests

KEYS = ["tasks.n=6", "search.simulations=12", "policy=noisy"]

ENVIRONMENTS = """
import os
from offline_agent.envs.shop import Shop

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
"""


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
    def found() -> tuple[dict[str, str], dict[str, int]]:
        run_dir = built(mine, *KEYS, "env=mine:Bound", "tasks.n=2")
        return digests(run_dir, *ALL), json.loads((run_dir / "summary.json").read_text())["rejudged"]

    before = found()
    assert before[1]["judged"] > 0
    assert found() == before  # a command that finds every tree mines them again


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(ENVIRONMENTS)
    monkeypatch.setitem(ENV, "PYTHONPATH", os.pathsep.join([str(tmp_path), ENV["PYTHONPATH"]]))
    return tmp_path / "run"
