"""`train_reward` on the trees of a real search; what it writes judges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offline_agent.pipelines import build_prefs, rejudge, train_reward
from offline_agent.pipelines.entry import main
from tests.helpers.hf import save
from tests.helpers.report import page_of


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("search") / "run"
    keys = ["env=tests.helpers.hostile_environments:Honest", "policy=noisy", "policy.noise=0.6", "tasks.n=6"]
    more = ["search.simulations=8", "tracking.uri=null", "audit=off", "pairs.kinds=[step]"]
    assert main(build_prefs.COMMAND, [*keys, *more, f"run_dir={run_dir}"]) == 0
    return run_dir


def test_a_reward_model_is_trained_measured_on_held_out_tasks_and_judges(searched: Path, tmp_path: Path) -> None:
    base = save("llama", tmp_path / "base")
    keys = [f"source={searched}", f"model={base}", "epochs=1", "held_out=0.34", "tracking.uri=null"]
    assert main(train_reward.COMMAND, [*keys, f"run_dir={tmp_path / 'reward'}"]) == 0
    summary = json.loads((tmp_path / "reward" / "summary.json").read_text())
    assert "over tasks" in page_of(tmp_path / "reward")
    assert summary["held_out"]["tasks"] == 2 and summary["train"]["tasks"] == 4
    assert summary["held_out"]["agreement"]["of"] == summary["held_out"]["judged"] > 0
    judge = ["judge=reward_model", f"judge.path={tmp_path / 'reward' / 'model'}"]
    assert main(rejudge.COMMAND, [f"run_dir={searched}", *judge, "tracking.uri=null", f"out={tmp_path / 'c'}"]) == 0
    found = json.loads((tmp_path / "c" / "summary.json").read_text())
    parts = (summary["train"], summary["held_out"])
    wrong = sum(part["agreement"]["of"] - part["agreement"]["count"] for part in parts)
    assert found["raised"] + found["lowered"] == wrong, "it judges as it was measured"
