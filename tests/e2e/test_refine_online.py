"""The online stage as a whole: a collapse that is caught, drawn tools, old data, what is kept of it all."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from examples.bandit import Bandit
from offline_agent.errors import TrainingError
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.refine_grpo import COMMAND
from offline_agent.pipelines.stages.online import OnlineRun
from tests.helpers.bandit import ENV, warm_started

KEYS = (
    "tracking.uri=null", "rollouts.max_steps=1", "rollouts.size=4", "tasks.n=64", "threads=1", "checkpoints.every=1",
)  # fmt: skip
MACHINES = "env=examples.machines:Machines"


class Trap(Bandit):
    """The left arm pays half for sure, the right arm all or, more often, nothing; the left one wears out."""

    pulls = 0

    def left(self) -> str:
        """Pull the left arm."""
        Trap.pulls += 1
        return self._pull("left")

    def get_reward(self) -> float:
        """Pay."""
        if self._arm == "left":
            return 0.5 if Trap.pulls < 750 else 0.0
        return float(random.Random(self._machine).random() < 0.4)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_started(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_started(tmp_path_factory.getbasetemp(), MACHINES)


def refine(run_dir: Path, model: Path, *keys: str) -> dict[str, Any]:
    assert main(COMMAND, [*KEYS, f"model.path={model}", f"run_dir={run_dir}", *keys]) == 0
    return dict(json.loads((run_dir / "summary.json").read_text()))


def records(run_dir: Path, shard: str = "0000") -> list[dict[str, Any]]:
    lines = (run_dir / "events" / f"{shard}.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "update" in record or "attempt" in record]


def test_a_collapse_is_caught_before_its_reward_falls(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("env=tests.e2e.test_refine_online:Trap", "rounds=28", "rollouts.tasks=8", "optimizer.learning_rate=2e-3")
    keys += ("rollouts.choice=uniform", "checkpoints.keep=30")
    monkeypatch.setattr(Trap, "pulls", 0)
    done = refine(tmp_path / "run", start, *keys)
    told, seen = capsys.readouterr().err, records(tmp_path / "run")
    caught = len(seen)
    assert caught < 26 and all(record["reward_mean"] > 0.4 for record in seen)
    (stopped,) = [finding for finding in done["findings"] if finding[0] == "echo_trap"]
    assert stopped[1] == caught and f"stopping: update {caught}: entropy " in told
    for name, line in done["checklist"]:  # told at once, with the figures of then
        assert f"  {name}: {line}" in told
    assert any("the weights are those of checkpoint-" in warning for warning in done["warnings"])

    monkeypatch.setattr(Trap, "pulls", 0)
    refine(tmp_path / "on", start, *keys, "watch.stop=[]")
    after = records(tmp_path / "on")
    assert len(after) == 28 and [r["reward_mean"] for r in after[:caught]] == [r["reward_mean"] for r in seen]
    assert max(record["reward_mean"] for record in after[-2:]) < 0.2


def test_findings_outlive_a_stop(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("env=tests.e2e.test_refine_online:Trap", "rounds=20", "rollouts.tasks=8", "optimizer.learning_rate=2e-3")
    keys += ("rollouts.choice=uniform", "checkpoints.every=3")
    monkeypatch.setattr(Trap, "pulls", 0)
    whole = refine(tmp_path / "whole", start, *keys)
    assert whole["findings"]

    look = OnlineRun.look

    def stop(self: Any, record: Any) -> Any:
        if record["update"] == 20:
            raise TrainingError("stopped")
        return look(self, record)

    monkeypatch.setattr(Trap, "pulls", 0)
    with monkeypatch.context() as patch:
        patch.setattr(OnlineRun, "look", stop)
        given = [*KEYS, f"model.path={start}", f"run_dir={tmp_path / 'run'}", *keys]
        assert main(COMMAND, given) != 0
    assert refine(tmp_path / "run", start, *keys)["findings"] == whole["findings"]






def test_successes_are_kept_as_the_offline_stage_keeps_them(start: Path, tmp_path: Path) -> None:
    done = refine(tmp_path / "run", start, ENV, "rounds=4", "rollouts.tasks=8", "tasks.n=8", "rollouts.rest=0")
    kept = pq.read_table(tmp_path / "run" / "filtered").to_pylist()
    tasks = [row["task_id"] for row in kept]
    assert done["rollouts"]["successes"] > len(kept) == done["filtered"] == len(set(tasks)) > 4  # one way to win each
