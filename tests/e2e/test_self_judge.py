"""`iterate` with `judge.path=self`: the searched model judges the search, the environment judges at the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from offline_agent.launch import stages as _stages
from offline_agent.launch.loop_stages import model_folder
from offline_agent.pipelines.entry import main
from offline_agent.store.provenance import hash_path
from tests.helpers.bandit import QUIET, command, in_process


def manifest(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "manifest.json").read_text()))


def test_the_searched_model_judges_itself_and_the_environment_decides_its_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stages, "_run", in_process)
    rubric, run_dir = tmp_path / "rubric.yaml", tmp_path / "run"
    rubric.write_text("scale: 3\nthreshold: 0.1\ncriteria:\n  - {name: bought, about: Was the wish met}\n")
    keys = [
        QUIET, "report=false", "threads=1", "tasks.n=2", "search.simulations=4", "search.max_steps=8", "held_out.n=2",
        "held_out.pool=2", "held_out.attempts=1", "dpo.enabled=true", "dpo.kinds=[step,trajectory]",
        "dpo.optimizer.epochs=1", "sft.optimizer.epochs=1",
        "pairs.min_gap=0", "judge=llm", f"judge.rubric={rubric}", "judge.path=self",
        "held_out.judge=environment", f"run_dir={run_dir}",
    ]  # fmt: skip
    assert main(command("iterate"), keys) == 0
    start = hash_path(model_folder(None))
    searched = manifest(run_dir / "iteration-0" / "build_prefs")
    assert searched["env"]["judge"]["version"] == f"2+{start[:12]}"
    texts = pq.read_table(run_dir / "iteration-0" / "build_prefs" / "trajectories")["verdict"].to_pylist()
    verdicts = [json.loads(text) for text in texts if text is not None]
    assert verdicts
    for verdict in verdicts:
        evidence = verdict["evidence"]
        assert verdict["verifier"] == "llm" and evidence["model"] == start[:12]
        chances = evidence["probabilities"]["bought"]
        assert len(chances) == 4 and sum(chances) == pytest.approx(1, abs=1e-5)
        assert verdict["score"] == pytest.approx(sum(n * p for n, p in enumerate(chances)) / 3, abs=1e-5)
    evaluated = [path.parent for path in (run_dir / "iteration-0").glob("evaluate*/manifest.json")]
    assert len(evaluated) >= 2, "incumbent and candidate"
    for stage in evaluated:
        assert "judge" not in manifest(stage)["env"]
        names = {json.loads(text)["verifier"] for text in pq.read_table(stage / "attempts")["verdict"].to_pylist()}
        assert names <= {"purchase", "shop.get_reward", "shop"}, names
