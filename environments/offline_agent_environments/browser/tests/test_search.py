"""Pages from a search to trained weights: what is found by replayed states alone is mined and learnt from."""

import json
import sys
from pathlib import Path

from offline_agent_environments.browser.tests import chromium  # noqa: F401  (skips where there is no Chromium)
from tests.helpers import forked

ENV = ("env=browser", "env.level=enter-text,login-user")
SMALL = ("scratch.layers=1", "scratch.hidden_size=16", "scratch.heads=2", "scratch.key_value_heads=1")
SMALL += ("scratch.vocabulary=400", "scratch.max_positions=2048")


def _run(pipeline: str, folder: Path, *keys: str) -> dict[str, object]:
    command = [sys.executable, "-m", f"offline_agent.pipelines.{pipeline}", *keys]
    done = forked.run([*command, f"run_dir={folder}", "tracking.uri=null"])
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads((folder / "summary.json").read_text())
    return found


def test_pages_are_searched_mined_and_trained_on(tmp_path: Path) -> None:
    search = ("policy=noisy", "policy.noise=0.3", "search.simulations=6", "search.max_steps=5", "tasks.n=2")
    found = _run("build_prefs", tmp_path / "search", *ENV, *search)
    assert found["success"]["best_of_search"] == 1.0  # type: ignore[index]
    assert found["this_session"]["calls_replayed"] > 0  # type: ignore[index]
    assert found["this_session"]["replay_mismatches"] == 0  # type: ignore[index]
    assert found["pairs"]["trajectory"] > 0  # type: ignore[index]
    data = f"data.runs=[{tmp_path / 'search'}]"
    _run("train_sft", tmp_path / "sft", data, *SMALL, "optimizer.max_updates=2")
    model = f"model.path={tmp_path / 'sft' / 'model'}"
    _run("train_dpo", tmp_path / "dpo", data, model, "data.kinds=[trajectory]", "optimizer.max_updates=2")
    assert (tmp_path / "dpo" / "model" / "model.safetensors").exists()
