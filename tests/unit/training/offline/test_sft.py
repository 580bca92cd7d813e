"""Likelihood training on stored ids and masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from offline_agent.errors import ConfigError
from offline_agent.training.data.rows import TrajectoryRow
from offline_agent.training.data.updates import UpdateSchedule, trajectory_units
from offline_agent.training.models import add_adapters
from offline_agent.training.offline.sft import TrajectoryTrainer, train_sft
from offline_agent.training.settings import LoraSection
from offline_agent.training.trainer import TrainRun
from tests.helpers.rendering import qwen
from tests.helpers.training import exact, far, model, plain_logps, settings, step, trajectories


def trainer(folder: Path, rows: list[TrajectoryRow], trained: Any, **changes: Any) -> Any:
    chosen = settings(**{"rows": len(rows), **changes})
    plan = UpdateSchedule(trajectory_units(rows), size=chosen.rows)
    return TrajectoryTrainer(trained, qwen(), plan, chosen, TrainRun(folder, lambda record: None))


@pytest.mark.parametrize("changes", [{}, {"tokens": 64}, {"share_prefixes": "off"}])
def test_loss_and_gradients_are_those_of_a_float64_reference(changes: dict[str, Any], tmp_path: Path) -> None:
    rows, trained = trajectories(9), model()  # more than 64 tokens
    found, gradients = step(trainer(tmp_path, rows, trained, **changes))
    precise = exact(trained)
    total, count = torch.zeros(()), 0.0
    for row in rows:
        logps = plain_logps(precise, row.input_ids[:1], row.input_ids[1:], row.action_mask[1:])
        total, count = total - row.weight * logps.sum(), count + row.weight * len(logps)
    (total / count).backward()
    assert found == pytest.approx((total / count).item(), rel=1e-5)
    assert far(gradients, {name: p.grad for name, p in precise.named_parameters() if p.grad is not None}) < 1e-4


def test_training_lowers_the_loss_of_agent_tokens(tmp_path: Path) -> None:
    rows, records, trained = trajectories(4), [], model()
    result = train_sft(trained, qwen(), rows, settings(rows=4, epochs=15), TrainRun(tmp_path, records.append))
    assert len(records) == result.updates == 15 and result.resumed_at == 0
    assert result.last["nll"] < 0.5 * result.first["nll"]
    assert result.agent_tokens == 15 * sum(sum(row.action_mask) for row in rows)
    assert set(records[0]) >= {"update", "loss", "nll", "entropy", "grad_norm", "learning_rate", "seconds", "epoch"}
    assert records[-1]["epoch"] == 15


def test_adapters_alone_are_trained(tmp_path: Path) -> None:
    adapted = add_adapters(model(), LoraSection(rank=4))
    before = {name: weights.detach().clone() for name, weights in adapted.named_parameters()}
    train_sft(adapted, qwen(), trajectories(4), settings(rows=4, epochs=2), TrainRun(tmp_path, lambda r: None))
    changed = {name for name, weights in adapted.named_parameters() if not torch.equal(weights, before[name])}
    assert changed and all("lora_" in name for name in changed)


def test_no_trajectories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no trajectories"):
        train_sft(model(), qwen(), [], settings(), TrainRun(tmp_path, print))
