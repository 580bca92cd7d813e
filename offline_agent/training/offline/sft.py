"""Likelihood training on stored ids and masks, on packs that share prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from offline_agent.errors import ConfigError
from offline_agent.training.data.updates import Unit, Update, UpdateSchedule, trajectory_units
from offline_agent.training.offline.losses import sequence_sums
from offline_agent.training.settings import TrainResult, TrainSettings
from offline_agent.training.trainer import PackedTrainer, Sums, TrainRun

if TYPE_CHECKING:
    from offline_agent.training.data.rows import TrajectoryRow


def train_sft(
    model: Any, tokenizer: Any, rows: Sequence[TrajectoryRow], settings: TrainSettings, run: TrainRun
) -> TrainResult:
    """Train on trajectories, in place; a run that was stopped goes on from its newest whole checkpoint.

    Minimised, over an update of trajectories i with agent tokens t: -sum_i w_i sum_t log pi(t) / sum_i w_i n_i.

    Args:
        model: A causal language model or a PeftModel.
        tokenizer: Goes with the checkpoints.
        rows: The trajectories, at least one.
        settings: Settings of the training.
        run: Where it writes, and who hears of it.

    Raises:
        ConfigError: No trajectories.
        TrainingError: The loss or gradient is no number or too large, or a checkpoint could not be written; what was
            good before is untouched.
    """
    if not rows:
        raise ConfigError("there are no trajectories to train on")
    plan = UpdateSchedule(
        trajectory_units(rows), size=settings.rows, epochs=settings.epochs, max_updates=settings.max_updates,
        seed=settings.seed,
    )  # fmt: skip
    trainer = TrajectoryTrainer(model, tokenizer, plan, settings, run)
    trainer.go()
    return trainer.result()


class TrajectoryTrainer(PackedTrainer):
    """A trainer on trajectories."""

    summed: tuple[str, ...] = ("loss", "nll", "entropy")

    def parts(self, update: Update, units: Sequence[Unit], pack: Any, scores: Any) -> Sums:
        """Return this pack's share of the update's loss and figures; `nll` a token, not weighted."""
        device = scores.logps.device
        every = torch.cat(list(pack.rows))
        sums = sequence_sums(pack.rows, scores.logps)
        weights = torch.tensor([unit.row.weight for unit in units], device=device)
        total = sum(unit.row.weight * unit.scored for unit in update.rows)
        tokens = sum(unit.scored for unit in update.rows)
        return {
            "loss": -(weights * sums).sum() / total,
            "nll": -sums.detach().sum() / tokens,
            "entropy": scores.entropy[every].sum() / tokens,
        }
