"""Environments that run code: searched, mined, trained on; the same trees for any number of workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from offline_agent.pipelines import build_prefs, train_dpo, train_sft
from offline_agent.pipelines.entry import main
from offline_agent.sandbox import Sandbox

TINY = [
    "tracking.uri=null", "scratch.layers=1", "scratch.hidden_size=16", "scratch.heads=1", "scratch.key_value_heads=1",
    "scratch.vocabulary=300", "optimizer.epochs=1",
]  # fmt: skip


def built(name: str, folder: Path, *keys: str) -> Path:
    given = [
        f"env={name}", "policy=noisy", "policy.noise=0.5", "tasks.n=2", "search.simulations=8", "search.max_steps=8",
        "tracking.uri=null", f"run_dir={folder}",
    ]  # fmt: skip
    assert main(build_prefs.COMMAND, [*given, *keys]) == 0
    return folder


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def assert_learns(name: str, tmp_path: Path) -> None:
    run = built(name, tmp_path / "run")
    told = summary(run)
    assert told["pairs_total"] and told["filtered"] and told["success"]["best_of_search"] > 0
    manifest = json.loads((run / "manifest.json").read_text())
    assert told["sandbox"] == manifest["env"]["sandbox"] == Sandbox().level
    model = tmp_path / "sft"
    keys = [f"data.runs=[{run}]", f"run_dir={model}", "scratch.max_positions=8192", *TINY]
    assert main(train_sft.COMMAND, keys) == 0
    if name == "math":
        keys = [f"data.runs=[{run}]", f"model.path={model}/model", f"run_dir={tmp_path / 'dpo'}", "tracking.uri=null",
                "optimizer.epochs=1", "data.kinds=[trajectory]"]  # fmt: skip
        assert main(train_dpo.COMMAND, keys) == 0


def assert_same_trees(name: str, tmp_path: Path) -> None:
    one = built(name, tmp_path / "one", "limits.workers=1")
    # few environments at once: states are restored by replay as well as from copies
    four = built(name, tmp_path / "four", "limits.workers=4", "limits.environments=3", "search.state_cache=1")
    trees = sorted(path.name for path in (one / "trees").iterdir())
    assert trees and all((one / "trees" / t).read_bytes() == (four / "trees" / t).read_bytes() for t in trees)
