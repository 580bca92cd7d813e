"""Likelihood training on stored ids and masks, on packs that share prefixes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from offline_agent.errors import ConfigError
from offline_agent.training.data.updates import Unit, Update, UpdateSchedule, observation_units, trajectory_units
from offline_agent.training.offline.losses import segment_sums, sequence_sums
from offline_agent.training.settings import TrainResult, TrainSettings
from offline_agent.training.trainer import PackedTrainer, Sums

if TYPE_CHECKING:
    from offline_agent.training.data.rows import TrajectoryRow


@dataclass(frozen=True)
class ObservationLoss:
    """Cross-entropy on observations beside that on agent tokens.

    Attributes:
        weight: Of the mean over an update's observation tokens; above 0.
        trajectories: Trajectories read for their observations alone, failures included; may be empty.
        per_update: Most of these in one update; None = each of them once in a pass over the rows.
    """

    weight: float
    trajectories: Sequence[TrajectoryRow] = ()
    per_update: int | None = None


def train_sft(
    model: Any,
    tokenizer: Any,
    rows: Sequence[TrajectoryRow],
    settings: TrainSettings,
    folder: Path,
    *,
    log: Callable[[dict[str, Any]], None],
    say: Callable[[str], None],
    observations: ObservationLoss | None = None,
) -> TrainResult:
    """Train on trajectories, in place; a run that was stopped goes on from its newest whole checkpoint.

    Minimised, over an update of trajectories i with agent tokens t: -sum_i w_i sum_t log pi(t) / sum_i w_i n_i. With
    `observations`, plus their weight times -sum_s log pi(s) / m over the m observation tokens s of the update
    (docs/objectives.md, "Observations"; ECHO, arXiv 2605.24517).

    Args:
        model: A causal language model or a PeftModel.
        tokenizer: Goes with the checkpoints.
        rows: The trajectories, at least one.
        settings: Settings of the training.
        folder: `checkpoints/` is in it.
        log: Gets one record for every update.
        say: Gets sentences for the user.
        observations: Predict observations, too: those that the rows' observation masks mark, and those of further
            trajectories; None = no row's observation mask is looked at.

    Raises:
        ConfigError: No trajectories.
        DataError: A token is in both masks of a row.
        TrainingError: The loss or gradient is no number or too large, or a checkpoint could not be written; what was
            good before is untouched.
    """
    if not rows:
        raise ConfigError("there are no trajectories to train on")
    plan = schedule(rows, settings, observations)
    trainer = TrajectoryTrainer(
        model, tokenizer, folder, plan, settings, log, rows=rows, weight=observations.weight if observations else 0.0
    )
    return trainer.result(trainer.go(say))


def schedule(
    rows: Sequence[TrajectoryRow], settings: TrainSettings, observations: ObservationLoss | None = None
) -> UpdateSchedule:
    """Return the updates; observations change neither their number nor the rows of each. Raises as `train_sft`."""
    if observations is None:
        units, beside, most = trajectory_units([replace(row, observation_mask=()) for row in rows]), [], 0
    else:
        units, beside = trajectory_units(rows), observation_units(observations.trajectories)
        once = math.ceil(len(beside) / math.ceil(len(units) / settings.rows))
        most = once if observations.per_update is None else observations.per_update
    return UpdateSchedule(
        units,
        beside,
        size=settings.rows,
        anchor_size=most,
        epochs=settings.epochs,
        max_updates=settings.max_updates,
        seed=settings.seed,
    )


class TrajectoryTrainer(PackedTrainer):
    """A trainer on trajectories.

    Args:
        rows: The trajectories, in the order of the plan's indices.
        weight: Of the cross-entropy on observations; 0 = the plan's units have none.
        more: See `PackedTrainer`.
    """

    summed: tuple[str, ...] = ("loss", "nll", "entropy")

    def __init__(self, *more: Any, rows: Sequence[TrajectoryRow], weight: float = 0.0) -> None:
        self.rows, self.weight = rows, weight
        if weight:
            self.summed = (*self.summed, "observations", "observation_tokens")
        super().__init__(*more)

    def parts(self, update: Update, units: Sequence[Unit], pack: Any, scores: Any) -> Sums:
        """Return this pack's share of the update's loss and figures; `nll` a token, not weighted."""
        if self.weight:
            return self._with_observations(update, units, pack, scores)
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

    def _with_observations(self, update: Update, units: Sequence[Unit], pack: Any, scores: Any) -> Sums:
        """Return the same with two disjoint sets of tokens: those of agents, and those of observations."""
        device = scores.logps.device
        seen = [unit.observed or (0,) * len(row) for unit, row in zip(units, pack.rows, strict=True)]
        observed = torch.tensor([flag for flags in seen for flag in flags], dtype=torch.bool, device=device)
        sizes = torch.tensor([len(row) for row in pack.rows])
        owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(device)
        every = torch.cat(list(pack.rows))
        logps, agents = scores.logps[every], ~observed
        sums = segment_sums(logps[agents], owner[agents], len(units))
        weights = torch.tensor([0.0 if unit.anchor else self.rows[unit.index].weight for unit in units], device=device)
        total = sum(self.rows[unit.index].weight * unit.agent_tokens for unit in update.rows)
        tokens = sum(unit.agent_tokens for unit in update.rows)
        count = sum(unit.observation_tokens for unit in (*update.rows, *update.anchors))
        predicted = -logps[observed].sum() / max(1, count)
        return {
            "loss": -(weights * sums).sum() / total + self.weight * predicted,
            "nll": -sums.detach().sum() / tokens,
            "entropy": scores.entropy[every[agents]].sum() / tokens,
            "observations": predicted.detach(),
            "observation_tokens": observed.sum().float(),
        }
