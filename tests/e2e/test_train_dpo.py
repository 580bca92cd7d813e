"""Preference training as a user runs it: what it writes, kill -9, faults before anything is written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from offline_agent.pipelines.entry import main
from offline_agent.pipelines.train_dpo import COMMAND
from tests.helpers import forked
from tests.helpers.rows import pair, run, trajectory

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
KEYS = [
    "tracking.uri=null", "batch.rows=4", "anchor.rows=2", "checkpoints.every=1", "optimizer.epochs=2",
    "data.kinds=[step,trajectory]",
]  # fmt: skip


def command(run_dir: Path, *keys: str) -> list[str]:
    return [sys.executable, "-m", "offline_agent.pipelines.train_dpo", *KEYS, *keys, f"run_dir={run_dir}"]


def train(run_dir: Path, *keys: str) -> int:
    """Run the pipeline in this process and return its exit status."""
    return main(COMMAND, command(run_dir, *keys)[3:])


def curve(run_dir: Path) -> list[float]:
    records = [json.loads(line) for line in (run_dir / "events" / "0000.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows: list[dict[str, Any]] = [pair(n, "tea pot", "cup", weight=1 / (1 + n % 2)) for n in range(6)]
    rows += [pair(0, "pot", "tea"), pair(0, "tea", "pot")]  # one against the other
    rows += [pair(n, "red tea", "blue tea", kind="trajectory") for n in range(6)]
    kept = [trajectory(n) for n in range(4)]
    return run(tmp_path_factory.mktemp("data") / "prefs", rows, kept)


@pytest.fixture(scope="module")
def whole(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    done = subprocess.run(command(run_dir, f"data.runs=[{data}]"), capture_output=True, text=True, env=ENV, check=False)
    assert done.returncode == 0, done.stderr
    assert "train_dpo" in done.stdout and "reference log-probs" in done.stdout
    assert "6 updates: so few" in done.stdout
    said = [line for line in done.stderr.splitlines() if "under way" not in line]  # no foreign bars and warnings
    assert said[0] == f"train_dpo: writing to {run_dir}" and len(said) == 4 and "contradict one another" in said[3]
    assert all(line.startswith("rows by level: ") for line in said[1:3])  # of the anchors, and of the pairs
    return run_dir


def test_it_writes_what_the_contract_lists(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    assert names >= {"manifest.json", "events", "checkpoints", "model", "quarantine.jsonl", "summary.json"}
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["data"]["kept"] == 12 and summary["data"]["left_out"] == {"contradictory": 2}
    assert summary["data"]["replayed"] == 4 and summary["data"]["kinds"] == {"step": 6, "trajectory": 6}
    training = summary["training"]
    assert training["updates"] == 6 == len(curve(whole))
    assert training["reference"]["computed"] == 12 and training["reference"]["stored"] == 0
    assert "0123456789abcdef" in summary["data"]["reference_reason"]  # another model's
    assert training["tokens"] < training["raw_tokens"]
    assert training["last"]["preference"] < training["first"]["preference"]
    refused = [json.loads(line) for line in (whole / "quarantine.jsonl").read_text().splitlines()]
    assert len(refused) == 2 and all("other way round" in row["reason"] for row in refused)


def test_the_model_loads_with_plain_transformers(whole: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from offline_agent.policies.hf.loading import model_hash

    loaded = AutoModelForCausalLM.from_pretrained(whole / "model")
    assert AutoTokenizer.from_pretrained(whole / "model").chat_template
    summary = json.loads((whole / "summary.json").read_text())
    assert model_hash(loaded) == summary["model"]["hash"] != summary["model"]["begun"]["model"]


def test_kill_9_at_any_moment_changes_nothing(data: str, whole: Path, tmp_path: Path) -> None:
    run_dir, killed = tmp_path / "run", []
    marks = [
        lambda: (run_dir / "checkpoints" / ".writing").exists(),
        lambda: (run_dir / "checkpoints" / "checkpoint-3").exists(),
    ]
    for mark in marks:
        process = forked.Process(command(run_dir, f"data.runs=[{data}]"), env=ENV)
        while process.poll() is None and not mark():
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        killed.append(process.wait())
    assert -signal.SIGKILL in killed
    assert train(run_dir, f"data.runs=[{data}]") == 0
    assert curve(run_dir) == pytest.approx(curve(whole), abs=1e-6)
    ours, theirs = (json.loads((path / "summary.json").read_text()) for path in (run_dir, whole))
    assert ours["model"]["hash"] == theirs["model"]["hash"]
    assert 0 < ours["training"]["resumed_at"] < 6


def test_stored_log_probs_of_another_model_stop_the_run(tmp_path: Path, capsys: Any) -> None:
    from offline_agent.policies.hf.loading import model_hash
    from offline_agent.training.models import load_trainable

    here = model_hash(load_trainable(None)[0])
    lying = run(tmp_path / "prefs", [pair(n, "tea pot", "cup", model=here) for n in range(3)], [trajectory()])
    assert train(tmp_path / "run", f"data.runs=[{lying}]") == 1
    assert "not this model's" in capsys.readouterr().err
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_what_is_replayed_is_accounted_for_and_part_of_the_run(tmp_path: Path, capsys: Any) -> None:
    rows = [pair(n, "tea pot", "cup") for n in range(4)]
    data = run(tmp_path / "prefs", rows, [trajectory(0), trajectory(1), trajectory(1)])
    assert train(tmp_path / "run", f"data.runs=[{data}]") == 0
    told = json.loads((tmp_path / "run" / "summary.json").read_text())["data"]
    assert (told["replayed"], told["replayed_left_out"]) == (2, {"duplicates": 1})
    assert "the same tokens as" in (tmp_path / "run" / "quarantine.jsonl").read_text()
    shutil.rmtree(data)
    run(tmp_path / "prefs", rows, [trajectory(2)])
    capsys.readouterr()
    assert train(tmp_path / "run", f"data.runs=[{data}]") == 2 and "data" in capsys.readouterr().err
