"""The loss of siblings and its gradients: against a float64 reference, on one pack and on several."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import SFTConfig

from offline_agent.errors import ConfigError
from offline_agent.training.data.rows import TrajectoryRow
from offline_agent.training.data.sibling_rows import SiblingRow
from offline_agent.training.data.updates import UpdateSchedule, sibling_units, trajectory_units
from offline_agent.training.offline.losses import sibling_loss
from offline_agent.training.offline.siblings import SiblingsTrainer, train_siblings
from offline_agent.training.settings import DpoSettings, trl_arguments
from tests.helpers.rendering import qwen
from tests.helpers.training import VOCABULARY, exact, far, model, plain_logps, settings, step, trajectories

DPO = DpoSettings(loss="siblings", sft=0.4, anchor_rows=3, anchor_weight=0.7)


def siblings(count: int = 4) -> list[SiblingRow]:
    """Return nodes of two to four actions of several lengths; those of one tree share the beginning."""
    chance, rows = random.Random(0), []
    start = tuple(chance.randrange(1, VOCABULARY) for _ in range(7))
    for index in range(count):
        history = (*start, *(chance.randrange(1, VOCABULARY) for _ in range(index)))
        sequences = []
        for _ in range(2 + index % 3):
            own = tuple(chance.randrange(1, VOCABULARY) for _ in range(chance.randint(1, 4)))
            sequences.append(((*history, *own), (0,) * len(history) + (1,) * len(own)))
        weights = [chance.random() for _ in sequences]
        shares = tuple(weight / sum(weights) for weight in weights)
        rows.append(SiblingRow(f"node {index}", "task", "tree", index, tuple(sequences), shares, shares, shares))
    return rows


def trainer_of(folder: Path, rows: list[SiblingRow], anchors: list[TrajectoryRow], **changes: Any) -> SiblingsTrainer:
    chosen = settings(**{"rows": len(rows), **changes})
    plan = UpdateSchedule(
        sibling_units(rows), trajectory_units(anchors, anchor=True), size=chosen.rows, anchor_size=3, seed=0
    )
    config = SFTConfig(**trl_arguments(chosen, folder, len(plan)))
    return SiblingsTrainer(model(), qwen(), config, plan, chosen, lambda record: None, rows=rows, dpo=DPO)


def by_hand(policy: Any, rows: list[SiblingRow], anchors: list[TrajectoryRow]) -> torch.Tensor:
    """Return the loss of one update of all rows and anchors, by loops over its formula."""
    entropy, likelihood, tokens = 0.0, 0.0, 0.0
    for row in rows:
        sums = [plain_logps(policy, ids[:1], ids[1:], mask[1:]).sum() for ids, mask in row.sequences]
        total = torch.logsumexp(torch.stack(sums), 0)
        for weight, one, (_, mask) in zip(row.weights, sums, row.sequences, strict=True):
            entropy = entropy - weight * (one - total)
            likelihood = likelihood - weight * one
            tokens += weight * sum(mask)
    replayed = [plain_logps(policy, a.input_ids[:1], a.input_ids[1:], a.action_mask[1:]) for a in anchors]
    anchor = -torch.cat(replayed).sum() / sum(map(len, replayed))
    return entropy / len(rows) + DPO.sft * likelihood / tokens + DPO.anchor_weight * anchor


@pytest.mark.parametrize("tokens", [4096, 64])
def test_loss_and_gradients_are_those_of_a_float64_reference(tokens: int, tmp_path: Path) -> None:
    rows, anchors = siblings(), trajectories(3)
    trainer = trainer_of(tmp_path, rows, anchors, tokens=tokens)
    found, gradients = step(trainer)
    precise = exact(model())
    expected = by_hand(precise, rows, anchors)
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-5)
    assert far(gradients, {name: p.grad for name, p in precise.named_parameters() if p.grad is not None}) < 1e-4


def test_the_cross_entropy_is_its_formula_for_any_size_of_the_sums() -> None:
    sums = torch.tensor([-1000.0, -1001.0, -3.0, -2.0, -2.5], dtype=torch.float64)
    weights = torch.tensor([0.3, 0.7, 0.2, 0.5, 0.3], dtype=torch.float64)
    owner = torch.tensor([0, 0, 1, 1, 1])
    first = -0.3 * math.log(1 / (1 + math.exp(-1))) - 0.7 * math.log(math.exp(-1) / (1 + math.exp(-1)))
    total = math.log(sum(map(math.exp, (-3.0, -2.0, -2.5))))
    second = sum(w * (total - s) for w, s in ((0.2, -3.0), (0.5, -2.0), (0.3, -2.5)))
    assert sibling_loss(sums, owner, weights, 2).tolist() == pytest.approx([first, second], abs=1e-12)
    at_rest = torch.log(weights).requires_grad_()  # the policy has the weights already: nothing pulls
    sibling_loss(at_rest, owner, weights, 2).sum().backward()
    assert at_rest.grad is not None and float(at_rest.grad.abs().max()) < 1e-12


def test_training_brings_the_policy_to_the_weights(tmp_path: Path) -> None:
    rows, records = siblings(3), list[dict[str, Any]]()
    trained, alone = model(), DpoSettings(loss="siblings", sft=0.0, anchor_rows=0)
    chosen = settings(epochs=60.0, schedule="constant")
    train_siblings(trained, qwen(), rows, [], chosen, alone, tmp_path, log=records.append, say=lambda text: None)
    for row in rows:
        sums = [plain_logps(trained, ids[:1], ids[1:], mask[1:]).sum() for ids, mask in row.sequences]
        assert torch.softmax(torch.stack(sums), 0).tolist() == pytest.approx(row.weights, abs=0.05)
    assert records[-1]["accuracy"] == 1.0 and records[-1]["preference"] < records[0]["preference"]
    with pytest.raises(ConfigError, match="no siblings"):
        train_siblings(trained, qwen(), [], [], chosen, alone, tmp_path / "x", log=records.append, say=print)
