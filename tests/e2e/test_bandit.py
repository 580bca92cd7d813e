"""A two-armed bandit whose optimum is known is solved: warm start on both arms, search, preferences, evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.helpers.bandit import ENV, call, warm_started


def summary(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "summary.json").read_text()))


def evaluate(model: Path, run_dir: Path, *keys: str) -> dict[str, Any]:
    call(
        "evaluate", ENV, f"policy.model={model}", "policy.temperature=1", "tasks.n=100", "attempts=2", "greedy=false",
        "max_steps=1", f"run_dir={run_dir}", *keys,
    )  # fmt: skip
    return summary(run_dir)


def test_the_better_arm_is_found(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    start = warm_started(tmp_path_factory.getbasetemp())
    before = evaluate(start, tmp_path / "before")["modes"]["sampled"]
    assert 0.2 < before["success"]["mean"] < 0.8 and before["invalid_call_rate"] < 0.1

    call(
        "build_prefs", ENV, f"policy.model={start}", "policy.temperature=1", "tasks.n=32", "search.simulations=8",
        "search.max_steps=1", f"run_dir={tmp_path / 'search'}",
    )  # fmt: skip
    pairs = pq.read_table(tmp_path / "search" / "preferences").to_pylist()
    assert {pair["kind"] for pair in pairs} <= {"step", "trajectory"}
    pairs = [pair for pair in pairs if pair["kind"] == "step"]
    assert len(pairs) >= 10
    assert all('"right"' in str(pair["chosen"]) and '"left"' in str(pair["rejected"]) for pair in pairs)

    call(
        "train_dpo", f"model.path={start}", f"data.runs=[{tmp_path / 'search'}]", "optimizer.epochs=14",
        "optimizer.learning_rate=1e-3", "batch.rows=8", "threads=1", f"run_dir={tmp_path / 'dpo'}",
    )  # fmt: skip
    after = evaluate(tmp_path / "dpo" / "model", tmp_path / "after", f"against.model={start}")
    assert after["modes"]["sampled"]["success"]["mean"] > 0.95
    assert after["comparison"]["sampled"]["difference"]["low"] > 0.3
    assert after["comparison"]["sampled"]["p_value"] < 0.001
