"""`refine_grpo objective.teacher=` as a user runs it: a teacher is learnt where nothing pays; who cannot teach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from offline_agent.errors import TrainingError
from offline_agent.training.online.trainer import OnlineTrainer
from tests.e2e.test_refine_grpo import records, refine
from tests.helpers.bandit import ENV, call, warm_started
from tests.helpers.fake_server import serving
from tests.helpers.model_server import ModelServer

POOR = "env=tests.e2e.test_refine_grpo:Poor"
KEYS = ("rollouts.tasks=8", "rounds=10", "watch.enabled=false", "objective.kl=0")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_started(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def teacher(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of the same family that pulls the right arm."""
    folder = tmp_path_factory.mktemp("teacher") / "run"
    call(
        "train_sft", ENV, f"model.path={start}", "tasks.n=32", "optimizer.epochs=20", "optimizer.learning_rate=5e-3",
        "batch.rows=8", "threads=1", "lora.rank=8", f"run_dir={folder}",
    )  # fmt: skip
    return folder / "model"


@pytest.fixture(scope="module")
def whole(start: Path, teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    assert refine(run_dir, start, *KEYS, f"objective.teacher={teacher}", env=POOR) == 0
    return run_dir


def same_weights(one: Path, other: Path, gap: float) -> bool:
    left, right = (load_file(run_dir / "model" / "model.safetensors") for run_dir in (one, other))
    return all(torch.allclose(left[name], right[name], atol=gap, rtol=0) for name in right)


def distance(one: Path, other: Path) -> float:
    left, right = (load_file(model / "model.safetensors") for model in (one, other))
    return float(torch.stack([(left[name] - right[name]).square().sum() for name in right]).sum().sqrt())


def test_what_the_teacher_does_is_learnt_though_nothing_pays(whole: Path) -> None:
    found = list(records(whole))
    assert found[0]["tools"]["right"] < 0.8 and found[-1]["tools"]["right"] > 0.9
    assert found[0]["teacher_kl"] > 3 * found[-1]["teacher_kl"] and {record["taught"] for record in found} == {1.0}
    assert all(record["reward_mean"] == 0 and record["accepted_calls"] > 0.9 for record in found)


def test_a_stopped_run_goes_on_with_the_same_teacher_alone(
    whole: Path, start: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, step = tmp_path / "run", OnlineTrainer.step
    keys = (*KEYS, f"objective.teacher={teacher}")

    def stopped(self: Any, update: Any) -> Any:
        if update.number == 3:
            raise TrainingError("stopped")
        return step(self, update)

    with monkeypatch.context() as patch:
        patch.setattr(OnlineTrainer, "step", stopped)
        assert refine(run_dir, start, *keys, env=POOR) == 1
    assert refine(run_dir, start, *keys, env=POOR) == 0
    assert same_weights(run_dir, whole, 1e-6)
    assert json.loads((run_dir / "manifest.json").read_text())["hashes"]["teacher"]


def test_a_server_and_adapters_teach_what_the_merged_model_does(
    whole: Path, start: Path, teacher: Path, tmp_path: Path
) -> None:
    with serving(ModelServer(teacher)) as server:
        assert refine(tmp_path / "served", start, *KEYS, f"objective.teacher={server.url}", env=POOR) == 0
    adapter = teacher.with_name("adapter")
    assert refine(tmp_path / "adapter", start, *KEYS, f"objective.teacher={adapter}", env=POOR) == 0
    # of all weights together: where a gradient is about 0, a difference by rounding can turn a whole step of Adam
    learnt = distance(start, whole / "model")
    for name in ("served", "adapter"):
        assert distance(tmp_path / name / "model", whole / "model") < 1e-3 * learnt, name


def test_a_teacher_that_cannot_teach_is_refused(start: Path, tmp_path: Path, capsys: Any) -> None:
    other = Path(__file__).parents[2] / "offline_agent" / "assets" / "default_model"
    run_dir = tmp_path / "run"
    assert refine(run_dir, start, *KEYS, f"objective.teacher={other}") == 2
    assert "has another tokenizer than the policy" in capsys.readouterr().err
    with serving(ModelServer(other)) as server:
        assert refine(run_dir, start, *KEYS, f"objective.teacher={server.url}") == 2
        assert "is served with another tokenizer" in capsys.readouterr().err
        assert refine(run_dir, start, *KEYS, f"objective.teacher={server.url}", "rollouts.temperature=0.5") == 2
        assert "log-probabilities at temperature 1" in capsys.readouterr().err
    assert refine(run_dir, start, *KEYS, f"objective.teacher={tmp_path / 'none'}") == 2
    assert "objective.teacher: got" in capsys.readouterr().err and not run_dir.exists()


def test_the_policy_itself_teaches_where_a_sibling_succeeded(start: Path, tmp_path: Path) -> None:
    keys = ("rollouts.tasks=4", "rounds=2", "objective.teacher=sibling", "objective.distil=0.5")
    assert refine(tmp_path / "run", start, *keys) == 0
    lines = (tmp_path / "run" / "events" / "rounds.jsonl").read_text().splitlines()
    for record, one in zip(records(tmp_path / "run"), map(json.loads, lines[1:]), strict=True):
        shown = sum(all_ - won for _, won, all_ in one["outcomes"] if won)  # failures whose group has a success
        assert record["taught"] == pytest.approx(shown / 16, abs=0.05) and shown and record["teacher_kl"] != 0
