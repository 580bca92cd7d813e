"""The benchmark for a GPU runs on a CPU with a small model: every line that needs no GPU does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.helpers.bandit import call

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import gpu


@pytest.mark.slow
def test_every_part_runs_with_a_small_model_and_says_why_one_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "in_process", lambda part, options: list(gpu.RUN[part](options)))
    monkeypatch.setattr(gpu, "command", call)
    # "context" runs the lines of "dpo" again, "tests" those of tests/gpu
    parts = ["dpo", "policy", "vllm", "grpo"]
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(sys, "argv", ["gpu", "--tiny", "--device", "cpu", "--out", str(out), "--parts", *parts])
    gpu.main()
    rows = json.loads(out.read_text())["rows"]
    trained = [row for row in rows if row["part"] == "training"]
    assert len(trained) == 4 and all(row["seconds"] > 0 and row["model TFLOPs/s"] > 0 for row in trained)
    (policy,) = [row for row in rows if row.get("case") == "policy=hf"]
    assert policy["share"] > 0 and policy["alone as in a batch"] == 1.0  # a CPU's answers do not depend on the batch
    assert any(row["part"] == "grpo" and row["seconds"] > 0 for row in rows)
    assert any(row.get("note") == "vLLM is not installed" or row.get("case") == "policy=colocated" for row in rows)
