"""Each task family's configuration: search lifts success, pairs are mined, and a small model trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offline_agent.pipelines import build_prefs, train_sft
from offline_agent.pipelines.entry import main

FAMILIES = Path(__file__).parents[1]
TINY = [
    "scratch.layers=1",
    "scratch.hidden_size=16",
    "scratch.heads=2",
    "scratch.key_value_heads=1",
    "scratch.vocabulary=500",
    "scratch.reading=0",
    "scratch.max_positions=4096",
    "optimizer.epochs=1",
    "batch.rows=4",
    "threads=1",
    "tracking.uri=null",
]


@pytest.mark.parametrize("family", ["files_qa", "retail", "search_qa", "sql"])
def test_a_family_is_searched_mined_and_trained_on(tmp_path: Path, family: str) -> None:
    searched, trained = tmp_path / "search", tmp_path / "trained"
    keys = ["tasks.n=5", "search.simulations=12", "tracking.uri=null", f"run_dir={searched}"]
    assert main(build_prefs.COMMAND, ["--config", str(FAMILIES / family / "configs" / "noisy.yaml"), *keys]) == 0
    found = json.loads((searched / "summary.json").read_text())
    assert found["success"]["best_of_search"] > found["success"]["plain_sampled"]
    assert found["tasks_with_pairs"] >= 4 and found["filtered"] >= 5
    assert not any(found["quarantined"].values()) and found["rejudged"]["disagreed"] == 0
    assert ("hindsight" in found["pairs"]) <= (family == "search_qa")  # the others say why not
    assert main(train_sft.COMMAND, [f"data.runs=[{searched}]", *TINY, f"run_dir={trained}"]) == 0
    assert json.loads((trained / "summary.json").read_text())["training"]["updates"] >= 1
