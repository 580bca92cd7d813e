"""The plan of arms: what is shared between them, and what is played."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).parents[3] / "benchmarks")


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    sys.modules.pop("arms", None)
    import arms

    def made(*names: str):
        options = argparse.Namespace(arms=list(names), split="test", held_out=None, attempts=4)
        return list(arms.stages(arms.SUITES["frozenlake"], 3, tmp_path, options))

    return made


def test_an_arm_that_reranks_shares_all_training_and_plays_the_fine_tuned_model(plan) -> None:
    alone = plan("states, then dpo")
    both = plan("states, then dpo", "states, then rerank")
    added = [stage for stage in both if stage not in alone]
    assert [stage.pipeline for stage in added] == ["evaluate"]
    (preferred,) = [stage for stage in both if stage.pipeline == "train_dpo"]
    keys = dict(key.split("=", 1) for key in added[0].keys)
    assert f"model.path={keys['policy.model']}" in preferred.keys
    assert keys["test_time.scorer"].endswith(f"{preferred.name}/model") and keys["test_time.algorithm"] == "rerank"
    assert preferred.name in added[0].after
    names = [stage.name for stage in both]
    assert len(names) == len(set(names)) and all(name in names for stage in both for name in stage.after)


def test_other_preference_training_is_not_shared(plan) -> None:
    trained = [stage for stage in plan("states, then dpo", "states, then siblings") if stage.pipeline == "train_dpo"]
    assert len({stage.name for stage in trained}) == 2
    assert [any(key == "dpo.loss=siblings" for key in stage.keys) for stage in trained] == [False, True]
