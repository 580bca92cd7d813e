"""Logs beside their environment: replays confirm them, judge what has no outcome, and find what is not true."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from offline_agent.pipelines import build_prefs, import_logs
from offline_agent.store.columns import known
from offline_agent.store.tables import read_table
from tests.helpers.log_writers import episodes_of

OFF = "tracking.uri=null"


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    run = tmp_path_factory.mktemp("own") / "s"
    keys = ["tasks.n=5", "policy=noisy", "policy.noise=0.4", "search.algorithm=best_of_n", "search.simulations=6"]
    assert build_prefs.main(build_prefs.COMMAND, [*keys, "pairs.kinds=[trajectory]", f"run_dir={run}", OFF]) == 0
    distinct = {json.dumps(record["messages"]): record for record in episodes_of(run)}
    return list(distinct.values())


def imported(records: list[dict[str, Any]], *keys: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the summary, and the entries of the quarantine."""
    Path("log.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert import_logs.main(import_logs.COMMAND, ["source=log.jsonl", "env=shop", *keys, "run_dir=r", OFF]) == 0
    entries = [json.loads(line) for line in Path("r/quarantine.jsonl").read_text().splitlines()]
    return json.loads(Path("r/summary.json").read_text()), [one for one in entries if one["kind"] == "branch"]


def _table() -> Path:
    (path,) = Path("r/trajectories").glob("*.parquet")
    return path


def test_a_true_log_is_confirmed(
    episodes: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    summary, branches = imported(episodes)
    assert summary["replays"]["confirmed"] == len(episodes) == summary["judged"] and not branches
    assert summary["replays"]["disagreed"] == 0 and summary["replays"]["not_replayed"] == {}
    assert summary["replays"]["calls"] > 0 and summary["pairs_total"] > 0


def test_what_is_not_true_is_in_quarantine_and_what_is_missing_is_judged(
    episodes: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    records = copy.deepcopy(episodes)
    longest = max(range(len(records)), key=lambda number: len(records[number]["messages"]))
    answers = [message for message in records[longest]["messages"] if message["role"] == "tool"]
    answers[-1]["content"] += " And a free gift."
    lied, unknown, elsewhere = [number for number in range(len(records)) if number != longest][:3]
    records[lied]["success"] = 1 - records[lied]["success"]
    wanted = records[unknown].pop("success")
    records[elsewhere]["task_id"] = "nobody-knows"
    summary, branches = imported(records)
    assert summary["replays"]["disagreed"] == 2 and summary["replays"]["confirmed"] == len(records) - 3
    assert summary["replays"]["not_replayed"] == {"the environment has no task of that id": 1}
    reasons = sorted(entry["reason"] for entry in branches)
    assert len(reasons) == 2 and all("replayed in shop" in reason for reason in reasons)
    assert any("is answered differently" in reason for reason in reasons)
    assert any("the verdict was" in reason for reason in reasons)
    assert summary["judged"] == len(records)  # the one without an outcome has the environment's
    told = [row["success"] for row in map(known, read_table(_table()))]
    kept = [record["success"] for number, record in enumerate(episodes) if number not in (longest, lied)]
    assert None not in told and wanted in kept and sorted(told) == sorted(map(bool, kept))


def test_a_judge_beside_the_environment_judges_the_replays(
    episodes: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    records = [{name: value for name, value in record.items() if name != "success"} for record in episodes]
    judge = f"judge={Path(__file__)}:environment_says"
    summary, branches = imported(records, judge)
    assert summary["judged"] == len(records) and not branches
    assert 0 < sum(record["success"] for record in episodes) / len(episodes) == summary["success"]["attempts"]


def environment_says(trajectory: Any) -> float | None:
    """Judge by the verdict of the environment, which a log does not have and a replay has."""
    return None if trajectory.verdict is None else float(trajectory.verdict.success)
