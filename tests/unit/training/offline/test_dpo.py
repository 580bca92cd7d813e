"""The update's loss and gradients: against a float64 reference, TRL's own code, other packs, other observations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from offline_agent.errors import ConfigError, TrainingError
from offline_agent.runner.training import doubts, of_result
from offline_agent.training.data.rows import PairRow, TrajectoryRow
from offline_agent.training.models import add_adapters
from offline_agent.training.offline.dpo import train_dpo
from offline_agent.training.offline.losses import PairSums, label_noise, preference_loss, turn_weights
from offline_agent.training.settings import DpoSettings, LoraSection, Loss
from offline_agent.training.trainer import TrainRun
from tests.helpers.rendering import qwen
from tests.helpers.training import (
    VOCABULARY,
    dpo_trainer,
    exact,
    far,
    model,
    pairs,
    plain_logps,
    settings,
    step,
    trajectories,
    trl_loss,
)

HARD = {"soft_labels": False, "weights": False}


@pytest.mark.parametrize(
    ("confidence", "rest", "noise"),
    [
        (0.95, None, 0.05),  # a step pair
        (0.95, 1.0, 0.05),
        (0.95, 0.8, 0.2),  # a noisy verifier
        (0.3, 1.0, 0.5),  # the first action is likely the worse one: the label is not turned round
        (None, 1.0, 0.15),
        (None, 0.6, 0.4),
        (None, None, 0.15),
    ],
)
def test_label_noise_is_what_is_not_sure(confidence: float | None, rest: float | None, noise: float) -> None:
    row = replace(pairs(1)[0], confidence=confidence, rest_confidence=rest)
    assert label_noise(row.confidence, row.rest_confidence, 0.15) == pytest.approx(noise)


def test_a_pair_of_unknown_confidence_is_trained_with_the_noise_that_is_set(tmp_path: Path) -> None:
    rows = [replace(row, confidence=None) for row in pairs(3)]
    same = [replace(row, confidence=0.7) for row in rows]
    losses = [
        step(dpo_trainer(tmp_path / str(number), given, DpoSettings(beta=0.3, **noise), reference=model(1)))[0]
        for number, (given, noise) in enumerate([(rows, {"unknown_noise": 0.3}), (same, {}), (rows, {})])
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6) and losses[0] != pytest.approx(losses[2], rel=1e-4)


def by_hand(
    policy: Any, reference: Any, rows: list[PairRow], anchors: list[TrajectoryRow], dpo: DpoSettings
) -> torch.Tensor:
    """Return the loss of one update of all rows and anchors, in the models' precision."""

    def logps(of: Any, row: PairRow, name: str) -> torch.Tensor:
        return plain_logps(of, row.prompt_ids, getattr(row, f"{name}_ids"), getattr(row, f"{name}_mask"))

    def total(values: torch.Tensor, row: PairRow, name: str) -> torch.Tensor:
        if dpo.loss != "dmpo":
            return values.sum()
        return (values * torch.tensor(turn_weights(getattr(row, f"{name}_mask"), dpo.dmpo_gamma))).sum()

    losses, weights, likelihood, tokens = [], [], 0.0, 0
    for row in rows:
        sides = [logps(policy, row, name) for name in ("chosen", "rejected")]
        with torch.no_grad():
            ref = [total(logps(reference, row, name), row, name) for name in ("chosen", "rejected")]
        now = [total(values, row, name) for values, name in zip(sides, ("chosen", "rejected"), strict=True)]
        counts = [torch.tensor([len(values)]) for values in sides]
        noise = torch.tensor([1 - row.confidence]) if dpo.soft_labels else None
        sums = PairSums(*(value.reshape(1) for value in (*now, *ref)), *counts)
        losses.append(preference_loss(dpo.loss, sums, dpo.beta, noise, dpo.label_smoothing)[0])
        weights.append(row.weight if dpo.weights else 1.0)
        likelihood, tokens = likelihood - sides[0].sum(), tokens + len(sides[0])
    out = sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights) + dpo.sft * likelihood / tokens
    if anchors:
        replayed = [plain_logps(policy, a.input_ids[:1], a.input_ids[1:], a.action_mask[1:]) for a in anchors]
        out = out - dpo.anchor_weight * torch.cat(replayed).sum() / sum(map(len, replayed))
    return out


@pytest.mark.parametrize("loss", get_args(Loss))
def test_loss_and_gradients_are_those_of_a_float64_reference(loss: str, tmp_path: Path) -> None:
    rows, anchors = pairs(5), trajectories(3)
    dpo = DpoSettings(loss=loss, beta=0.3, sft=0.4, anchor_rows=3, anchor_weight=0.7, label_smoothing=0.1)
    policy, reference = model(0), model(1)
    trainer = dpo_trainer(tmp_path, rows, dpo, anchors, trained=policy, reference=reference, max_loss=1e3)
    found, gradients = step(trainer)
    precise = exact(policy)
    expected = by_hand(precise, exact(reference), rows, anchors, dpo)
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-5)
    assert far(gradients, {name: p.grad for name, p in precise.named_parameters() if p.grad is not None}) < 1e-4


@pytest.mark.parametrize("loss", [name for name in get_args(Loss) if name != "dmpo"])
def test_losses_are_trls(loss: str, tmp_path: Path) -> None:
    rows = pairs(4)
    dpo = DpoSettings(loss=loss, beta=0.3, sft=0.0, anchor_rows=0, label_smoothing=0.1, **HARD)
    trainer = dpo_trainer(tmp_path, rows, dpo, reference=model(1), max_loss=1e3)
    found, _ = step(trainer)
    sides = [
        tuple(plain_logps(trainer.model, r.prompt_ids, getattr(r, f"{s}_ids"), getattr(r, f"{s}_mask")).detach()
              for s in ("chosen", "rejected"))
        for r in rows
    ]  # fmt: skip
    assert found == pytest.approx(float(trl_loss(dpo, sides, trainer._ref)), rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": 64}, {"share_prefixes": "off"}, {"share_prefixes": "off", "tokens": 90},
        {"gradient_checkpointing": True},
    ],  # fmt: skip
)
def test_packs_and_sharing_change_nothing(changes: dict[str, Any], tmp_path: Path) -> None:
    rows, anchors = pairs(6), trajectories(3)
    dpo = DpoSettings(anchor_rows=3)
    whole = dpo_trainer(tmp_path / "a", rows, dpo, anchors, reference=model(1))
    apart = dpo_trainer(tmp_path / "b", rows, dpo, anchors, reference=model(1), **changes)
    assert (whole.scorer.shares, apart.scorer.shares) == (True, "share_prefixes" not in changes)
    assert [t.model.is_gradient_checkpointing for t in (whole, apart)] == [False, "gradient_checkpointing" in changes]
    (one, gradients), (other, split) = step(whole), step(apart)
    assert one == pytest.approx(other, rel=1e-5)
    assert far(split, gradients) < 1e-4
    figures = [
        {k: v for k, v in t.seen.items() if k not in ("seconds", "tokens")} for t in (whole, apart)
    ]
    assert figures[0] == pytest.approx(figures[1], rel=1e-4, abs=1e-5)


def relabelled(row: PairRow, last: bool) -> PairRow:
    """Return the row with other ids in the observation after the last action, or in all before it."""
    sides = {}
    for name in ("chosen", "rejected"):
        ids, mask = list(getattr(row, f"{name}_ids")), getattr(row, f"{name}_mask")
        end = max(at for at, value in enumerate(mask) if value)
        for at, value in enumerate(mask):
            if not value and (at > end) == last:
                ids[at] = ids[at] % (VOCABULARY - 1) + 1
        sides[f"{name}_ids"] = tuple(ids)
    return replace(row, **sides)


def test_what_is_seen_after_the_last_action_is_nothing_to_the_loss(tmp_path: Path) -> None:
    rows = pairs(4, tail=True)
    dpo = DpoSettings(anchor_rows=0)
    results = []
    for given in (rows, [relabelled(row, last=True) for row in rows], [relabelled(row, last=False) for row in rows]):
        results.append(step(dpo_trainer(tmp_path / str(len(results)), given, dpo, reference=model(1))))
    (loss, gradients), (same, unchanged), (other, _) = results
    assert same == pytest.approx(loss, rel=1e-6) and far(unchanged, gradients) < 1e-5
    assert other != pytest.approx(loss, rel=1e-3)  # an observation before an action is what the action answers to


def test_only_agent_tokens_are_predicted(tmp_path: Path) -> None:
    rows = pairs(4, tail=True)
    trainer = dpo_trainer(tmp_path, rows, DpoSettings(anchor_rows=0), reference=model(1))
    states, packs = [], []
    score = trainer.score

    def noted(*given: Any, **more: Any) -> Any:
        pack, scores = score(*given, **more)
        packs.append(pack)
        return pack, scores

    def keep(module: Any, inputs: Any, output: torch.Tensor) -> None:
        output.retain_grad()
        states.append(output)

    trainer.score = noted
    hook = trainer.model.model.norm.register_forward_hook(keep)
    embedded = trainer.model.model.embed_tokens.register_forward_hook(keep)
    step(trainer)
    hook.remove(), embedded.remove()
    embeddings, hidden = states
    pulled = hidden.grad[0].abs().sum(-1).nonzero().flatten().tolist()
    agent = sum(sum(row.chosen_mask) + sum(row.rejected_mask) for row in rows)
    assert set(pulled) == set(packs[0].source.tolist()) and len(pulled) <= agent
    assert float(embeddings.grad[0, 0].abs().sum()) > 0  # the history still conditions


def test_dropout_that_a_model_passes_to_functions_is_off(tmp_path: Path) -> None:
    trained = model()
    for layer in trained.model.layers:
        layer.self_attn.attention_dropout = 0.5
    trainer = dpo_trainer(tmp_path, pairs(3), DpoSettings(), trained=trained)
    (first, gradients), (second, again) = step(trainer), step(trainer)
    assert first == second and all(torch.equal(gradients[name], again[name]) for name in gradients)


def test_the_reference_is_the_model_with_its_adapters_off(tmp_path: Path) -> None:
    rows = pairs(3)
    adapted = add_adapters(model(), LoraSection(rank=4))
    with torch.no_grad():
        for name, weights in adapted.named_parameters():
            if "lora_B" in name:
                weights.normal_(0, 0.3)
    trainer = dpo_trainer(tmp_path, rows, DpoSettings(anchor_rows=0), trained=adapted)
    assert list(trainer.model.peft_config) == ["default"]
    base = model()
    for row, (chosen, _) in zip(rows, trainer.reference.sides, strict=True):
        assert torch.allclose(chosen, plain_logps(base, row.prompt_ids, row.chosen_ids, row.chosen_mask), atol=1e-4)
    _, gradients = step(trainer)
    assert gradients and all("lora_" in name for name in gradients)
    assert abs(trainer.seen["margin"]) > 1e-3  # the policy is not its reference


def stored(rows: list[PairRow], of: Any, shift: float = 0.0) -> list[PairRow]:
    """Return the rows with a model's log-probabilities, 0.0 where the mask is 0."""
    out = []
    for row in rows:
        columns = {}
        for name in ("chosen", "rejected"):
            mask = getattr(row, f"{name}_mask")
            found = iter(plain_logps(of, row.prompt_ids, getattr(row, f"{name}_ids"), mask).tolist())
            columns[f"ref_{name}"] = tuple(next(found) + shift if value else 0.0 for value in mask)
        out.append(replace(row, **columns))
    return out


def test_stored_and_computed_references_agree(tmp_path: Path) -> None:
    rows, dpo = pairs(6), DpoSettings(anchor_rows=0)
    trainers = [
        dpo_trainer(tmp_path / "a", rows, dpo),
        dpo_trainer(tmp_path / "b", stored(rows, model()), dpo),
        dpo_trainer(tmp_path / "c", [*stored(rows[:4], model()), *rows[4:]], dpo),
    ]
    counts = [trainer.reference.figures for trainer in trainers]
    assert [(c["stored"], c["computed"], c["checked"]) for c in counts] == [(0, 6, 0), (6, 0, 6), (4, 2, 4)]
    assert counts[1]["difference"] < 1e-4
    for trainer in trainers[1:]:
        assert torch.allclose(trainer._ref, trainers[0]._ref, atol=1e-4)


def test_stored_references_of_another_model_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"not this model's: pair-\d differs by 0.01"):
        dpo_trainer(tmp_path, stored(pairs(4), model(), shift=0.01), DpoSettings())
    with pytest.raises(TrainingError, match="nan"):
        dpo_trainer(tmp_path, stored(pairs(4), model(), shift=float("nan")), DpoSettings())
    dpo_trainer(tmp_path, stored(pairs(4), model(), shift=0.01), DpoSettings(), mixed=True)  # within its rounding


def test_no_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no pairs"):
        train_dpo(model(), qwen(), [], [], settings(), DpoSettings(), TrainRun(tmp_path, print))


def test_training_learns_the_preference(tmp_path: Path) -> None:
    rows, records, trained = pairs(6), [], model()
    result = train_dpo(
        trained, qwen(), rows, trajectories(2), settings(rows=6, epochs=12), DpoSettings(anchor_rows=2),
        TrainRun(tmp_path, records.append),
    )  # fmt: skip
    assert [record["update"] for record in records] == list(range(1, 13)) == [r["update"] for r in result.records]
    assert "accuracy" not in result.first and result.last["accuracy"] > 0.9  # policy and reference are one model
    assert result.first["preference"] == pytest.approx(0.6931, abs=1e-3)
    assert result.last["preference"] < 0.6
    assert result.last["anchor"] < result.first["anchor"]
    assert result.end["loss"] < result.last["loss"] and result.end["accuracy"] == 1.0
    assert result.shares and result.tokens < result.raw_tokens
    agent = sum(sum(row.chosen_mask) + sum(row.rejected_mask) for row in rows)
    assert result.agent_tokens == 12 * (agent + sum(sum(row.action_mask) for row in trajectories(2)))
    assert trained.config.use_cache and "forward" not in trained.__dict__


def test_one_update_is_measured_before_and_after(tmp_path: Path) -> None:
    given = settings(rows=6, epochs=1, learning_rate=1e-3)
    for number, changes in enumerate(({}, {"loss": "robust", **HARD})):
        chosen = DpoSettings(anchor_rows=0, **changes)
        result = train_dpo(
            model(), qwen(), pairs(6), [], given, chosen, TrainRun(tmp_path / str(number), print)
        )  # fmt: skip
        told = of_result(result, 1.0)
        assert told["loss_last"] == result.end["loss"] < told["loss_first"] == result.first["loss"]
        assert "accuracy" in told["last"] and "accuracy" not in told["first"]
        short, far_away = doubts(result)
        assert short.startswith("1 update: ") and "far from the data" in far_away and len([*doubts(result, True)]) == 1
