"""`train_reward` on the trees of a real search; what it writes judges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offline_agent.pipelines import build_prefs, evaluate, rejudge, train_reward
from offline_agent.pipelines.entry import main
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.run_directory import read_tree
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


def test_a_step_model_is_trained_on_the_edges_leads_a_search_and_chooses(searched: Path, tmp_path: Path) -> None:
    base, none = save("llama", tmp_path / "base"), "tracking.uri=null"
    keys = [f"source={searched}", f"model={base}", "epochs=1", "held_out=0.34", "labels=steps", none]
    assert main(train_reward.COMMAND, [*keys, f"run_dir={tmp_path / 'steps'}"]) == 0
    summary = json.loads((tmp_path / "steps" / "summary.json").read_text())
    assert "AUC within tasks" in page_of(tmp_path / "steps")
    assert summary["held_out"]["tasks"] == 2 and summary["held_out"]["turns"] > 2 and summary["loss"]["first"] > 0
    model, env = summary["model"], "env=tests.helpers.hostile_environments:Honest"
    search = [env, "policy=noisy", "tasks.n=2", "search.simulations=8", f"search.critic={model}", "audit=off", none]
    assert main(build_prefs.COMMAND, [*search, f"run_dir={tmp_path / 'led'}"]) == 0
    trees = [tree_from_json(read_tree(path)) for path in (tmp_path / "led" / "trees").glob("*.gz")]
    assert any(edge.critic is not None for tree in trees for edge in tree.edges)
    manifest = json.loads((tmp_path / "led" / "manifest.json").read_text())
    assert list(manifest["sources"][model]) == ["reward_model.json"], "a run goes on with the same model alone"
    chosen = [env, "policy=noisy", "tasks.n=2", "test_time.algorithm=best_of_n", "test_time.simulations=3"]
    assert main(evaluate.COMMAND, [*chosen, f"test_time.judge={model}", none, f"run_dir={tmp_path / 'e'}"]) == 0
    found = json.loads((tmp_path / "e" / "summary.json").read_text())
    assert "chose by its value of the last turn" in json.dumps(found)
