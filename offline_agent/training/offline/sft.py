"""Likelihood training on stored ids and masks, on packs that share prefixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from offline_agent.errors import ConfigError
from offline_agent.training.data.updates import Unit, Update, UpdateSchedule, trajectory_units
from offline_agent.training.offline.losses import sequence_sums
from offline_agent.training.settings import TrainResult, TrainSettings
from offline_agent.training.trainer import PackedTrainer, Sums

if TYPE_CHECKING:
    from offline_agent.training.data.rows import TrajectoryRow


def train_sft(
    model: Any,
    tokenizer: Any,
    rows: Sequence[TrajectoryRow],
    settings: TrainSettings,
    folder: Path,
    *,
    log: Callable[[dict[str, Any]], None],
    say: Callable[[str], None],
) -> TrainResult:
    """Train on trajectories, in place; a run that was stopped goes on from its newest whole checkpoint.

    Minimised, over an update of trajectories i with agent tokens t: -sum_i w_i sum_t log pi(t) / sum_i w_i n_i.

    Args:
        model: A causal language model or a PeftModel.
        tokenizer: Goes with the checkpoints.
        rows: The trajectories, at least one.
        settings: Settings of the training.
        folder: `checkpoints/` is in it.
        log: Gets one record for every update.
        say: Gets sentences for the user.

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
    trainer = TrajectoryTrainer(model, tokenizer, folder, plan, settings, log, rows=rows)
    return trainer.result(trainer.go(say))


class TrajectoryTrainer(PackedTrainer):
    """A trainer on trajectories.

    Args:
        rows: The trajectories, in the order of the plan's indices.
        more: See `PackedTrainer`.
    """

    summed: tuple[str, ...] = ("loss", "nll", "entropy")

    def __init__(self, *more: Any, rows: Sequence[TrajectoryRow]) -> None:
        self.rows = rows
        super().__init__(*more)

    def parts(self, update: Update, units: Sequence[Unit], pack: Any, scores: Any) -> Sums:
        """Return this pack's share of the update's loss and figures; `nll` a token, not weighted."""
        device = scores.logps.device
        every = torch.cat(list(pack.rows))
        sums = sequence_sums(pack.rows, scores.logps)
        weights = torch.tensor([self.rows[unit.index].weight for unit in units], device=device)
        total = sum(self.rows[unit.index].weight * unit.scored for unit in update.rows)
        tokens = sum(unit.scored for unit in update.rows)
        return {
            "loss": -(weights * sums).sum() / total,
            "nll": -sums.detach().sum() / tokens,
            "entropy": scores.entropy[every].sum() / tokens,
        }
