"""The benchmark for a GPU runs on a CPU with a small model: every line that needs no GPU does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gpu.py"


@pytest.mark.slow
def test_every_part_runs_with_a_small_model_and_says_why_one_cannot(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    line = [sys.executable, str(SCRIPT), "--tiny", "--device", "cpu", "--out", str(out), "--parts"]
    line += ["dpo", "policy", "vllm", "grpo", "tests"]  # "context" runs the lines of "dpo" again
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    trained = [row for row in rows if row["part"] == "training"]
    assert len(trained) == 4 and all(row["seconds"] > 0 and row["model TFLOPs/s"] > 0 for row in trained)
    (policy,) = [row for row in rows if row.get("case") == "policy=hf"]
    assert policy["share"] > 0 and policy["alone as in a batch"] == 1.0  # a CPU's answers do not depend on the batch
    assert any(row["part"] == "grpo" and row["seconds"] > 0 for row in rows)
    assert any(row.get("note") == "vLLM is not installed" or row.get("case") == "policy=colocated" for row in rows)
    (tests,) = [row for row in rows if row["part"] == "tests"]
    assert tests["passed"] and ("skipped" in tests["note"] or "passed" in tests["note"])
