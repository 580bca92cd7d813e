"""Likelihood training on stored ids and masks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_agent.errors import ConfigError, DataError
from offline_agent.training.data.rows import TrajectoryRow
from offline_agent.training.data.updates import UpdateSchedule, trajectory_units
from offline_agent.training.models import add_adapters
from offline_agent.training.offline.sft import ObservationLoss, TrajectoryTrainer, schedule, train_sft
from tests.helpers.rendering import qwen
from tests.helpers.training import VOCABULARY, exact, far, model, plain_logps, settings, step, trajectories


def trainer(folder: Path, rows: list[TrajectoryRow], trained: Any, **changes: Any) -> Any:
    chosen = settings(**{"rows": len(rows), **changes})
    plan = UpdateSchedule(trajectory_units(rows), size=chosen.rows)
    return TrajectoryTrainer(trained, qwen(), folder, plan, chosen, lambda record: None, rows=rows)


@pytest.mark.parametrize("changes", [{}, {"tokens": 30}, {"share": False}])
def test_loss_and_gradients_are_those_of_a_float64_reference(changes: dict[str, Any], tmp_path: Path) -> None:
    rows, trained = trajectories(4), model()
    found, gradients = step(trainer(tmp_path, rows, trained, **changes))
    precise = exact(trained)
    total, count = torch.zeros(()), 0.0
    for row in rows:
        logps = plain_logps(precise, row.input_ids[:1], row.input_ids[1:], row.action_mask[1:])
        total, count = total - row.weight * logps.sum(), count + row.weight * len(logps)
    (total / count).backward()
    assert found == pytest.approx((total / count).item(), rel=1e-5)
    assert far(gradients, {name: p.grad for name, p in precise.named_parameters() if p.grad is not None}) < 1e-4


def observed(rows: list[TrajectoryRow]) -> list[TrajectoryRow]:
    """Return rows that mark what stands between their actions, but its first token, and two ids after the last one."""
    out = []
    for row in rows:
        ids, mask = (*row.input_ids, 7, 8), (*row.action_mask, 0, 0)
        marks = [0, 0, 0, *(int(not mask[at] and not mask[at - 1]) for at in range(3, len(ids)))]
        out.append(replace(row, input_ids=ids, action_mask=mask, observation_mask=tuple(marks)))
    return out


@pytest.mark.parametrize("changes", [{}, {"tokens": 30}, {"share": False}, {"share": False, "tokens": 30}])
def test_observations_add_their_weighted_mean_to_the_mean_of_agent_tokens(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """Rows share prefixes; a failure is beside them, whose actions weigh nothing."""
    rows = observed(trajectories(4))
    longer = replace(rows[0], name="longer", input_ids=(*rows[0].input_ids, 9, 10, 11))
    rows.append(replace(longer, action_mask=(*rows[0].action_mask, 0, 1, 1),
                        observation_mask=(0,) * len(longer.input_ids)))  # fmt: skip
    failed = replace(observed(trajectories(2, seed=7))[1], name="failed", weight=3.0)
    trained, loss = model(), ObservationLoss(0.7, [failed])
    chosen = settings(rows=len(rows), **changes)
    plan = schedule(rows, chosen, loss)
    shared = TrajectoryTrainer(
        trained, qwen(), tmp_path, plan, chosen, lambda record: None, rows=rows, weight=loss.weight
    )
    found, gradients = step(shared)
    precise = exact(trained)
    agent, agents, seen, count = torch.zeros(()), 0.0, torch.zeros(()), 0
    for row in [*rows, failed]:
        if row is not failed:
            logps = plain_logps(precise, row.input_ids[:1], row.input_ids[1:], row.action_mask[1:])
            agent, agents = agent - row.weight * logps.sum(), agents + row.weight * len(logps)
        logps = plain_logps(precise, row.input_ids[:1], row.input_ids[1:], row.observation_mask[1:])
        seen, count = seen - logps.sum(), count + len(logps)
    wanted = agent / agents + 0.7 * seen / count
    wanted.backward()
    assert found == pytest.approx(wanted.item(), rel=1e-5)
    assert far(gradients, {name: p.grad for name, p in precise.named_parameters() if p.grad is not None}) < 1e-4
    figures = shared.seen
    assert figures["observations"] == pytest.approx((seen / count).item(), rel=1e-5)
    assert (figures["observation_tokens"], figures["agent_tokens"]) == (count, sum(sum(r.action_mask) for r in rows))


def test_without_a_loss_on_observations_marks_change_no_weight(tmp_path: Path) -> None:
    rows, ends = observed(trajectories(4)), []
    for number, given in enumerate((rows, [replace(row, observation_mask=()) for row in rows])):
        trained = model()
        result = train_sft(
            trained, qwen(), given, settings(rows=2, epochs=3), tmp_path / str(number), log=lambda r: None, say=print
        )
        assert result.observation_tokens == 0 and "observations" not in result.last
        ends.append({name: weights.detach() for name, weights in trained.named_parameters()})
    assert all(torch.equal(weights, ends[1][name]) for name, weights in ends[0].items())


def test_observations_change_neither_the_number_of_updates_nor_their_rows() -> None:
    rows, failed = observed(trajectories(5)), observed(trajectories(7, seed=3))
    chosen = settings(rows=2, epochs=2)
    plain, loss = schedule(rows, chosen), ObservationLoss(1.0, failed)
    beside = schedule(rows, chosen, loss)
    assert [[u.name for u in update.rows] for update in plain] == [[u.name for u in update.rows] for update in beside]
    first = [unit.index for update in list(beside)[: beside.per_epoch] for unit in update.anchors]
    assert sorted(set(first)) == list(range(7)), "each once in a pass over the rows"
    few = schedule(rows, chosen, replace(loss, per_update=1))
    assert [len(update.anchors) for update in few] == [1] * len(plain)


def test_a_token_of_both_masks_is_refused_before_the_first_update(tmp_path: Path) -> None:
    row = replace(trajectories(1)[0], observation_mask=trajectories(1)[0].action_mask)
    with pytest.raises(DataError, match="in the mask of agent tokens and in that of observations"):
        train_sft(model(), qwen(), [row], settings(), tmp_path, log=print, say=print, observations=ObservationLoss(1.0))


def test_observations_after_the_last_action_are_nothing_to_the_loss(tmp_path: Path) -> None:
    rows = [replace(r, input_ids=(*r.input_ids, 7, 8), action_mask=(*r.action_mask, 0, 0)) for r in trajectories(3)]
    other = [replace(row, input_ids=(*row.input_ids[:-2], 9, VOCABULARY - 1)) for row in rows]
    (loss, gradients), (same, unchanged) = (
        step(trainer(tmp_path / str(len(given[0].input_ids)), given, model())) for given in (rows, other)
    )
    assert same == pytest.approx(loss, rel=1e-6) and far(unchanged, gradients) < 1e-5


def test_training_lowers_the_loss_of_agent_tokens(tmp_path: Path) -> None:
    rows, records, trained = trajectories(4), [], model()
    result = train_sft(trained, qwen(), rows, settings(rows=4, epochs=15), tmp_path, log=records.append, say=print)
    assert len(records) == result.updates == 15 and result.resumed_at == 0
    assert result.last["nll"] < 0.5 * result.first["nll"]
    assert result.agent_tokens == 15 * sum(sum(row.action_mask) for row in rows)
    assert set(records[0]) >= {"update", "loss", "nll", "entropy", "grad_norm", "learning_rate", "seconds", "epoch"}
    assert records[-1]["epoch"] == 15


def test_adapters_alone_are_trained(tmp_path: Path) -> None:
    adapted = add_adapters(model(), 4, None, 0.0, "all-linear")
    before = {name: weights.detach().clone() for name, weights in adapted.named_parameters()}
    train_sft(adapted, qwen(), trajectories(4), settings(rows=4, epochs=2), tmp_path, log=lambda r: None, say=print)
    changed = {name for name, weights in adapted.named_parameters() if not torch.equal(weights, before[name])}
    assert changed and all("lora_" in name for name in changed)


def test_no_trajectories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no trajectories"):
        train_sft(model(), qwen(), [], settings(), tmp_path, log=print, say=print)
