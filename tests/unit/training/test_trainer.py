"""What both trainers share: the guard, checkpoints, going on after a stop, several processes."""

from __future__ import annotations

import math
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_agent.errors import TrainingError
from offline_agent.store import provenance
from offline_agent.training import checkpoints
from offline_agent.training.models import add_adapters
from offline_agent.training.offline.dpo import train_dpo
from offline_agent.training.settings import DpoSettings, LoraSection, TrainResult
from offline_agent.training.trainer import TrainRun
from tests.helpers import forked
from tests.helpers.rendering import qwen
from tests.helpers.training import model, pairs, settings, trajectories

ROOT = Path(__file__).parents[3]
DPO = DpoSettings(anchor_rows=2)


class Stop(Exception):
    """A stop in the middle of a run."""


def train(folder: Path, stop_at: int | None = None, trained: Any = None, **changes: Any) -> TrainResult:
    """Train for six updates, a checkpoint after every second."""

    def log(record: dict[str, Any]) -> None:
        if record["update"] == stop_at:
            raise Stop

    chosen = settings(epochs=2, **changes)
    trained = model() if trained is None else trained
    return train_dpo(trained, qwen(), pairs(9), trajectories(5), chosen, DPO, TrainRun(folder, log))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainResult, dict[str, torch.Tensor]]:
    trained = model()
    result = train(tmp_path_factory.mktemp("whole"), trained=trained)
    return result, {name: weights.clone() for name, weights in trained.state_dict().items()}


@pytest.mark.parametrize("stop_at", [1, 2, 3, 5, 6])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(stop_at: int, tmp_path: Path, whole: Any) -> None:
    with pytest.raises(Stop):
        train(tmp_path, stop_at=stop_at)
    trained = model()
    result = train(tmp_path, trained=trained)
    assert result.resumed_at == (stop_at - 1) // 2 * 2
    assert result.curve == pytest.approx(whole[0].curve, abs=1e-6) and result.updates == 6
    assert result.agent_tokens == whole[0].agent_tokens and result.tokens == whole[0].tokens
    for name, weights in trained.state_dict().items():
        assert torch.allclose(weights, whole[1][name], atol=1e-6)


def test_mixed_precision_rounds_products_and_no_weight(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    trained = model()
    result = train(tmp_path, trained=trained, mixed=True)
    assert "slow in bfloat16" in result.warnings[0] and not whole[0].warnings
    far = max(abs(ours - exact) for ours, exact in zip(result.curve, whole[0].curve, strict=True))
    assert 0 < far < 0.1  # 0.051 on a processor without instructions for bfloat16, below 0.05 with them
    weights = list(trained.parameters())
    assert all(each.dtype == torch.float32 for each in weights)
    assert any(not torch.equal(each, each.bfloat16().float()) for each in weights)


def test_a_finished_run_just_ends_well(tmp_path: Path, whole: Any) -> None:
    train(tmp_path)
    trained = model()
    result = train(tmp_path, trained=trained)
    assert (result.resumed_at, result.updates, result.curve) == (6, 6, pytest.approx(whole[0].curve, abs=1e-6))
    for name, weights in trained.state_dict().items():
        assert torch.allclose(weights, whole[1][name], atol=1e-6)


def adapted() -> Any:
    return add_adapters(model(), LoraSection(rank=4))


def experts() -> Any:
    """Return a model whose files have other names of weights than it has itself."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=60, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2, max_position_embeddings=256,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config)


@pytest.mark.parametrize("made", [adapted, experts])
def test_other_kinds_of_models_go_on_too(made: Any, tmp_path: Path) -> None:
    uninterrupted = train(tmp_path / "whole", trained=made())
    with pytest.raises(Stop):
        train(tmp_path / "run", stop_at=5, trained=made())
    result = train(tmp_path / "run", trained=made())
    assert result.resumed_at == 4
    assert result.curve == pytest.approx(uninterrupted.curve, abs=1e-6)


def test_weights_that_the_model_does_not_have_are_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        train(tmp_path, stop_at=3, trained=experts())
    checkpoint = tmp_path / "checkpoints" / "checkpoint-2"
    experts().save_pretrained(checkpoint)  # by the hub's names
    provenance.seal(checkpoint)
    with pytest.raises(TrainingError, match="has weights that the model does not have"):
        train(tmp_path, trained=experts())


def test_torn_checkpoints_are_passed_over(tmp_path: Path, whole: Any) -> None:
    with pytest.raises(Stop):
        train(tmp_path, stop_at=5)
    folder = tmp_path / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-2", "checkpoint-4"]
    weights = folder / "checkpoint-4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (folder / "checkpoint-9").mkdir()
    (folder / ".writing" / "checkpoint-6").mkdir(parents=True)
    assert checkpoints.newest(folder) == folder / "checkpoint-2"
    result = train(tmp_path)
    assert result.resumed_at == 2
    assert result.curve == pytest.approx(whole[0].curve, abs=1e-6)
    assert checkpoints.newest(folder) == folder / "checkpoint-6" and not (folder / ".writing").exists()


def test_as_many_checkpoints_are_kept_as_were_asked_for(tmp_path: Path) -> None:
    train(tmp_path, every=1, keep=3)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [f"checkpoint-{n}" for n in (4, 5, 6)]


@pytest.mark.parametrize("error", [RuntimeError("PytorchStreamWriter failed writing file"), OSError(28, "No space")])
def test_a_full_disk_leaves_the_last_good_checkpoint(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any
) -> None:
    save, calls = torch.save, []

    def full(*given: Any, **more: Any) -> None:
        calls.append(given)
        if len(calls) > 5:  # in the middle of the second checkpoint
            raise error
        save(*given, **more)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(TrainingError, match="checkpoint-2; free some space"):
        train(tmp_path)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-2"]
    assert train(tmp_path).curve == pytest.approx(whole[0].curve, abs=1e-6)


def test_a_bad_loss_stops_the_run_before_it_does_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from offline_agent.training.offline import dpo as module

    real, seen = module.preference_loss, []

    def broken(*given: Any) -> torch.Tensor:
        seen.append(given)
        return real(*given) * (math.nan if len(seen) == 4 else 1.0)

    monkeypatch.setattr(module, "preference_loss", broken)
    trained = model()
    with pytest.raises(
        TrainingError, match=r"update 4: its loss is nan.*checkpoint-2\. Its rows: pair-\d, .*trajectory-"
    ):
        train(tmp_path, trained=trained)
    assert all(bool(torch.isfinite(weights).all()) for weights in trained.state_dict().values())
    monkeypatch.undo()
    assert train(tmp_path).updates == 6


def test_an_update_that_destroys_the_weights_is_named_by_the_one_after_it(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"update 1: it made weights that are .*there is no checkpoint yet"):
        train(tmp_path, learning_rate=1e38, schedule="constant", every=3)
    assert not list(tmp_path.glob("checkpoints/checkpoint-*"))


def test_the_last_good_checkpoint_is_kept_where_an_update_destroys_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = torch.optim.AdamW.step
    steps: list[int] = []

    def broken(self: Any, *given: Any, **more: Any) -> Any:
        done = step(self, *given, **more)
        steps.append(1)
        if len(steps) == 4:
            self.param_groups[0]["params"][0].data[0, 0] = math.inf
        return done

    monkeypatch.setattr(torch.optim.AdamW, "step", broken)
    with pytest.raises(TrainingError, match=r"update 4: .*not finite: model\..*checkpoint-2; |checkpoint-2\. Lower"):
        train(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-2"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"max_loss": 0.1}, "its loss is .* allowed: a number up to 0.1"), ({"max_gradient": 1e-3}, "gradient norm")],
)
def test_limits_stop_the_first_update(changes: dict[str, float], says: str, tmp_path: Path) -> None:
    trained = model()
    before = {name: weights.clone() for name, weights in trained.state_dict().items()}
    with pytest.raises(TrainingError, match=says) as caught:
        train(tmp_path, trained=trained, **changes)
    assert "update 1" in str(caught.value) and "no checkpoint yet" in str(caught.value)
    assert all(torch.equal(weights, before[name]) for name, weights in trained.state_dict().items())


KILLED = """
import os, signal, sys
import torch
from pathlib import Path
from tests.unit.training.test_trainer import train
folder, when = Path(sys.argv[1]), int(sys.argv[2])
save, calls = torch.save, []
def stop(*given, **more):
    calls.append(given)
    if len(calls) == when:
        os.kill(os.getpid(), signal.SIGKILL)
    save(*given, **more)
torch.save = stop
train(folder)
"""


def test_kill_9_while_a_checkpoint_is_written(tmp_path: Path, whole: Any) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = forked.run([sys.executable, "-c", KILLED, str(tmp_path), "5"], env=env)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = tmp_path / "checkpoints" / ".writing" / "checkpoint-4"
    assert (left / "model.safetensors").exists() and not (left / "whole.json").exists()
    result = train(tmp_path)
    assert result.resumed_at == 2
    assert result.curve == pytest.approx(whole[0].curve, abs=1e-6)


def test_learning_rates_rise_and_fall(tmp_path: Path) -> None:
    rates = {
        schedule: [r["learning_rate"] for r in train(tmp_path / schedule, schedule=schedule, warmup=0.34).records]
        for schedule in ("constant", "linear", "cosine")
    }
    assert rates["constant"] == pytest.approx([0, 0.005, 0.01, 0.01, 0.01, 0.01])
    assert rates["linear"] == pytest.approx([0, 0.005, 0.01, 0.0075, 0.005, 0.0025])
    assert rates["cosine"][2] == pytest.approx(0.01) and rates["cosine"] != pytest.approx(rates["linear"])


def test_what_a_launcher_says_of_accumulation_changes_no_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any
) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    assert train(tmp_path, max_updates=1).first["grad_norm"] == pytest.approx(whole[0].first["grad_norm"], rel=1e-6)


def test_weights_of_rows_count(tmp_path: Path) -> None:
    rows = [replace(row, weight=0.0 if index else 1.0) for index, row in enumerate(pairs(3))]
    without = DPO.model_copy(update={"sft": 0.0})
    alone = train_dpo(
        model(), qwen(), rows[:1], [], settings(), without, TrainRun(tmp_path / "a", lambda r: None)
    )
    beside = train_dpo(
        model(), qwen(), rows, [], settings(), without, TrainRun(tmp_path / "b", lambda r: None)
    )
    assert beside.first["grad_norm"] == pytest.approx(alone.first["grad_norm"], rel=1e-4)
