"""Preference training on packs that share prefixes, every sum over agent tokens alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from offline_agent.errors import ConfigError, TrainingError
from offline_agent.training.checkpoints import stalled
from offline_agent.training.data.updates import (
    Unit,
    Update,
    UpdateSchedule,
    counted,
    fill,
    pair_units,
    trajectory_units,
)
from offline_agent.training.offline.losses import PairSums, label_noise, preference_loss, sequence_sums, turn_weights
from offline_agent.training.prefix_sharing.head import evaluating
from offline_agent.training.settings import DpoSettings, TrainResult, TrainSettings
from offline_agent.training.trainer import PackedTrainer, Sums, TrainRun

if TYPE_CHECKING:
    from offline_agent.training.data.rows import PairRow, TrajectoryRow

Sides = tuple[Tensor, Tensor]

_SUMMED = (
    "loss", "preference", "sft", "anchor", "accuracy", "decided", "margin", "rewards_chosen", "rewards_rejected",
    "logps_chosen", "logps_rejected", "entropy",
)  # fmt: skip
_EQUAL = {torch.float32: 1e-5, torch.float64: 1e-5}  # log-probability a token by which two passes of one model differ
_LOOSE = 1e-2
_CHECKED = 8  # stored reference log-probabilities that are computed again
_FAR = {torch.float32: 1e-3, torch.float64: 1e-3}  # by which they may differ, a token
_FAR_LOOSE = 0.1  # bfloat16 and float16: two kernels differ by as much now and then


class Reference(NamedTuple):
    """The reference of every pair.

    Attributes:
        sides: For every pair the log-probabilities (nats) of the agent tokens, in order, of chosen [n] and rejected
            [m]; float32 on the CPU.
        figures: See `TrainResult.reference`.
    """

    sides: list[Sides]
    figures: dict[str, float | int | None]


def train_dpo(
    model: Any,
    tokenizer: Any,
    rows: Sequence[PairRow],
    anchors: Sequence[TrajectoryRow],
    settings: TrainSettings,
    dpo: DpoSettings,
    run: TrainRun,
) -> TrainResult:
    """Train on preference pairs, in place; a run that was stopped goes on from its newest whole checkpoint.

    Minimised, over an update of pairs i: sum_i w_i l_i / sum_i w_i, plus `dpo.sft` times the mean negative
    log-likelihood of the chosen sides' agent tokens, plus `dpo.anchor_weight` times that of the replayed
    trajectories'. The reference is the model as it is given (a PeftModel: with its adapters off).

    Args:
        model: A causal language model or a PeftModel.
        tokenizer: Goes with the checkpoints.
        rows: The pairs, at least one.
        anchors: Trajectories to replay; may be empty.
        settings: Settings of the training.
        dpo: The loss.
        run: Where it writes, and who hears of it.

    Raises:
        ConfigError: No pairs, or a loss that does not exist or does not go with the other settings.
        TrainingError: The loss or gradient is no number or too large, stored reference log-probs are not this model's,
            or a checkpoint could not be written; what was good before is untouched.
    """
    if not rows:
        raise ConfigError("there are no pairs to train on")
    units = pair_units(rows)
    plan = UpdateSchedule(
        units, trajectory_units(anchors, anchor=True), size=settings.rows,
        anchor_size=dpo.anchor_rows if dpo.anchor_weight else 0, epochs=settings.epochs,
        max_updates=settings.max_updates, seed=settings.seed,
    )  # fmt: skip
    trainer = PairTrainer(model, tokenizer, plan, settings, run, dpo=dpo)
    found = trainer.refer(units)
    trainer.go()
    warning = stalled(trainer.records)
    if warning:
        run.say(f"train_dpo: {warning}")
    return trainer.result(reference=found.figures, warnings=(warning,) if warning else ())


class PairTrainer(PackedTrainer):
    """A trainer on preference pairs.

    Args:
        dpo: The loss.
        more: See `PackedTrainer`.
    """

    summed = _SUMMED

    def __init__(self, *more: Any, dpo: DpoSettings) -> None:
        self.dpo = dpo
        self._ref = torch.zeros(0, 2)
        super().__init__(*more)

    def refer(self, units: Sequence[Unit]) -> Reference:
        """Find the reference log-probabilities of all pairs before the first update: stored ones, else computed ones.

        Raises:
            TrainingError: The stored ones are not this model's.
        """
        sides = {unit.index: found for unit in units if (found := _stored(unit.row)) is not None}
        stored = [unit for unit in units if unit.index in sides]
        missing = [unit for unit in units if unit.index not in sides]
        difference = self._check(stored, sides)
        sides |= self._computed(missing)
        sums = [
            [float((side.double() * weight).sum()) for side, weight in zip(both, self._turns(unit), strict=True)]
            for unit, both in ((unit, sides[unit.index]) for unit in units)
        ]
        self._ref = torch.tensor(sums, dtype=torch.float64).to(torch.float32)
        checked = min(_CHECKED, len(stored))
        figures = {"stored": len(stored), "computed": len(missing), "checked": checked, "difference": difference}
        return Reference([sides[unit.index] for unit in units], figures)

    def _check(self, stored: Sequence[Unit], sides: dict[int, Sides]) -> float | None:
        """Compute some of the stored ones again, as a hash that agrees is no proof; return the largest difference."""
        sample = [stored[k * len(stored) // _CHECKED] for k in range(_CHECKED)] if len(stored) > _CHECKED else stored
        if not sample:
            return None
        again, allowed = self._computed(sample), _FAR.get(self.compute_dtype, _FAR_LOOSE)
        worst, at = 0.0, sample[0]
        for unit in sample:
            for new, old in zip(again[unit.index], sides[unit.index], strict=True):
                far = float((new - old).abs().max()) if len(new) == len(old) != 0 else float(len(new) != len(old))
                if not far <= worst:  # not a number counts as far
                    worst, at = far, unit
        if not worst <= allowed:
            raise TrainingError(
                f"stored reference log-probs are not this model's: {at.name} differs by {worst:.3g} a token, allowed "
                f"{allowed:g}. Name the model that made the pairs (model.path), or set dpo.reference=computed"
            )
        return worst

    def _computed(self, units: Sequence[Unit]) -> dict[int, Sides]:
        """Return the start model's log-probabilities of both sides' agent tokens by the index of a unit."""
        out: dict[int, Sides] = {}
        packs = fill(units, self.settings.tokens, self.scorer.shares)
        for pack in counted(packs, "log-probabilities of the start model"):
            for unit, (chosen, rejected) in zip(pack, self._reference_scores(pack), strict=True):
                out[unit.index] = (chosen.detach().float().cpu(), rejected.detach().float().cpu())
        return out

    def _turns(self, unit: Unit) -> Sides:
        """Return the weights of both sides' agent tokens: of dmpo those of their turns, else 1 for all."""
        if self.dpo.loss != "dmpo":
            return torch.ones(()), torch.ones(())
        masks = unit.row.chosen_mask, unit.row.rejected_mask
        chosen, rejected = (torch.tensor(turn_weights(mask, self.dpo.dmpo_gamma)) for mask in masks)
        return chosen, rejected

    def _reference_scores(self, units: Sequence[Unit]) -> Iterable[Sides]:
        off = self.model.disable_adapter() if hasattr(self.model, "disable_adapter") else contextlib.nullcontext()
        with evaluating(self.model), off:
            pack, scores = self.score(self.model, units)
        taken = [scores.logps[row] for row in pack.rows]
        return zip(taken[::2], taken[1::2], strict=True)

    # -- the loss ----------------------------------------------------------------------------------------------------

    def parts(self, update: Update, units: Sequence[Unit], pack: Any, scores: Any) -> Sums:
        """Return this pack's share of the update's loss and figures."""
        device = scores.logps.device
        every = torch.cat(list(pack.rows))
        logps = scores.logps[every]
        spread = scores.entropy[every].sum() / sum(unit.scored for unit in (*update.rows, *update.anchors))
        sums = sequence_sums(pack.rows, scores.logps)
        place = 0
        pairs: list[tuple[Unit, int]] = []
        anchors: list[tuple[Unit, int]] = []
        for unit in units:
            (anchors if unit.anchor else pairs).append((unit, place))
            place += len(unit.sides)
        parts: Sums = {"entropy": spread}
        if pairs:
            chunks = logps.split([len(row) for row in pack.rows])
            sides = [(chunks[at], chunks[at + 1]) for _, at in pairs]
            first = torch.tensor([at for _, at in pairs], device=device)
            parts |= self._pairs(update, [unit for unit, _ in pairs], sides, sums[first], sums[first + 1])
        if anchors:
            count = sum(unit.scored for unit in update.anchors)
            parts["anchor"] = -sums[[at for _, at in anchors]].sum() / count
        zero = logps.new_zeros(())
        loss = parts.get("preference", zero) + self.dpo.sft * parts.get("sft", zero)
        parts["loss"] = loss + self.dpo.anchor_weight * parts.get("anchor", zero)
        return parts

    def _pairs(
        self, update: Update, units: Sequence[Unit], sides: Sequence[Sides], chosen: Tensor, rejected: Tensor
    ) -> Sums:
        """Return the pairs' share.

        Args:
            update: The whole update.
            units: The pack's pairs, B of them.
            sides: Their agent tokens' log-probabilities, chosen [n] and rejected [m].
            chosen, rejected: [B], the sums of the same.
        """
        device, count = chosen.device, len(update.rows)
        of_update = sum(sum(sequence.scored) for unit in update.rows for sequence in unit.sides[0])
        parts: Sums = {"sft": -chosen.sum() / of_update}
        seen = self._seen(units, sides, chosen, rejected)
        weights, total = self._row_weights(units), float(self._row_weights(update.rows).sum())
        noise, smoothing = self._noise(units, device), self.dpo.label_smoothing
        losses = preference_loss(self.dpo.loss, seen, self.dpo.beta, noise, smoothing)
        parts["preference"] = (weights.to(device) * losses).sum() / total
        with torch.no_grad():
            won = self.dpo.beta * (seen.chosen - seen.ref_chosen)
            lost = self.dpo.beta * (seen.rejected - seen.ref_rejected)
            figures = {
                "margin": won - lost, "rewards_chosen": won, "rewards_rejected": lost, "logps_chosen": chosen,
                "logps_rejected": rejected,
            }  # fmt: skip
            parts |= {name: value.sum() / count for name, value in figures.items()}
            equal = _EQUAL.get(self.compute_dtype, _LOOSE) * (seen.chosen_tokens + seen.rejected_tokens).sqrt()
            decided = (won - lost).abs() > self.dpo.beta * equal
            return parts | {"accuracy": ((won > lost) & decided).float().sum(), "decided": decided.float().sum()}

    def figures(self, update: Update, sums: dict[str, float]) -> dict[str, float]:
        """See `PackedTrainer.figures`; `accuracy` is of the pairs by which policy and reference differ, if any do."""
        found = super().figures(update, sums)
        right, decided = found.pop("accuracy"), found.pop("decided")
        return {**found, "accuracy": right / decided} if decided else found

    def _seen(self, units: Sequence[Unit], sides: Sequence[Sides], chosen: Tensor, rejected: Tensor) -> PairSums:
        """Return the sums of the pairs that a loss needs; for dmpo every token is multiplied by its turn's weight."""
        device = chosen.device
        ref = self._ref[[unit.index for unit in units]].to(device)
        tokens = torch.tensor([[len(side) for side in pair] for pair in sides], device=device)
        if self.dpo.loss == "dmpo":
            weights = [self._turns(unit) for unit in units]
            both = [
                torch.stack([(pair[k] * w[k].to(device)).sum() for pair, w in zip(sides, weights, strict=True)])
                for k in (0, 1)
            ]
            chosen, rejected = both
        return PairSums(chosen, rejected, ref[:, 0], ref[:, 1], tokens[:, 0], tokens[:, 1])

    def _row_weights(self, units: Sequence[Unit]) -> Tensor:
        return torch.tensor([unit.row.weight if self.dpo.weights else 1.0 for unit in units])

    def _noise(self, units: Sequence[Unit], device: torch.device) -> Tensor | None:
        if not self.dpo.soft_labels:
            return None
        rows = [unit.row for unit in units]
        noise = [label_noise(row.confidence, row.rest_confidence, self.dpo.unknown_noise) for row in rows]
        return torch.tensor(noise, device=device)


def _stored(row: PairRow) -> Sides | None:
    """Return the log-probabilities of a row's agent tokens; None where it stores none."""
    if row.ref_chosen is None or row.ref_rejected is None:
        return None
    chosen = [value for value, own in zip(row.ref_chosen, row.chosen_mask, strict=True) if own]
    rejected = [value for value, own in zip(row.ref_rejected, row.rejected_mask, strict=True) if own]
    return torch.tensor(chosen, dtype=torch.float32), torch.tensor(rejected, dtype=torch.float32)
