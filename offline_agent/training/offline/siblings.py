"""Training on all siblings of a node at once: cross-entropy to the weights of their values, shared prefixes once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from trl import SFTConfig, SFTTrainer

from offline_agent.errors import ConfigError
from offline_agent.training.data.updates import Unit, Update, anchored_schedule, sibling_units
from offline_agent.training.offline.losses import sequence_sums, sibling_loss
from offline_agent.training.settings import DpoSettings, TrainResult, TrainSettings, trl_arguments
from offline_agent.training.trainer import PackedTrainer, Sums

if TYPE_CHECKING:
    from offline_agent.training.data.rows import TrajectoryRow
    from offline_agent.training.data.sibling_rows import SiblingRow


def train_siblings(
    model: Any,
    tokenizer: Any,
    rows: Sequence[SiblingRow],
    anchors: Sequence[TrajectoryRow],
    settings: TrainSettings,
    dpo: DpoSettings,
    folder: Path,
    *,
    log: Callable[[dict[str, Any]], None],
    say: Callable[[str], None],
) -> TrainResult:
    """Train on sibling rows, in place; a run that was stopped goes on from its newest whole checkpoint.

    Minimised, over an update of N nodes i with actions k of n_ik agent tokens, s_ik the sum of their log-probabilities
    and w_ik their weights: -1/N sum_ik w_ik log softmax_k(s_ik), plus `dpo.sft` times the weighted negative
    log-likelihood a token, -sum_ik w_ik s_ik / sum_ik w_ik n_ik, plus `dpo.anchor_weight` times that of the replayed
    trajectories. There is no reference.

    Args:
        model: A causal language model or a PeftModel.
        tokenizer: Goes with the checkpoints.
        rows: The nodes, at least one.
        anchors: Trajectories to replay; may be empty.
        settings: Settings of the training.
        dpo: `sft`, `anchor_rows` and `anchor_weight` are used.
        folder: `checkpoints/` is in it.
        log: Gets one record for every update.
        say: Gets sentences for the user.

    Raises:
        ConfigError: No nodes.
        TrainingError: The loss or gradient is no number or too large, or a checkpoint could not be written; what was
            good before is untouched.
    """
    if not rows:
        raise ConfigError("there are no siblings to train on")
    plan = anchored_schedule(sibling_units(rows), anchors, settings, dpo)
    config = SFTConfig(**trl_arguments(settings, folder, len(plan)))
    trainer = SiblingsTrainer(model, tokenizer, config, plan, settings, log, rows=rows, dpo=dpo)
    return trainer.result(trainer.go(say))


class SiblingsTrainer(PackedTrainer, SFTTrainer):  # type: ignore[misc]
    """TRL's SFTTrainer over `PackedTrainer`'s updates, with the loss of siblings.

    Args:
        rows: The nodes, in the order of the plan's indices.
        dpo: The weights of the loss's parts.
        more: See `PackedTrainer`.
    """

    summed = ("loss", "preference", "sft", "anchor", "accuracy", "entropy")

    def __init__(self, *more: Any, rows: Sequence[SiblingRow], dpo: DpoSettings) -> None:
        self.rows, self.dpo = rows, dpo
        super().__init__(*more)

    def parts(self, update: Update, units: Sequence[Unit], pack: Any, scores: Any) -> Sums:
        """Return this pack's share of the update's loss and figures.

        `accuracy` is the share of nodes whose most likely action has the largest weight.
        """
        device = scores.logps.device
        every = torch.cat(list(pack.rows))
        sums = sequence_sums(pack.rows, scores.logps)
        scored = sum(unit.scored for unit in (*update.rows, *update.anchors))
        parts: Sums = {"entropy": scores.entropy[every].sum() / scored}
        at, of_nodes, of_anchors, nodes = 0, list[int](), list[int](), list[Unit]()
        for unit in units:
            places = range(at, at + len(unit.sequences))
            (of_anchors if unit.anchor else of_nodes).extend(places)
            nodes += [] if unit.anchor else [unit]
            at = places.stop
        zero = sums.new_zeros(())
        if nodes:
            parts |= self._nodes(update, nodes, sums[torch.tensor(of_nodes, device=device)])
        if of_anchors:
            parts["anchor"] = -sums[of_anchors].sum() / sum(unit.scored for unit in update.anchors)
        loss = parts.get("preference", zero) + self.dpo.sft * parts.get("sft", zero)
        return parts | {"loss": loss + self.dpo.anchor_weight * parts.get("anchor", zero)}

    def _nodes(self, update: Update, nodes: Sequence[Unit], sums: Tensor) -> Sums:
        """Return the nodes' share; `sums` [M] are those of all their actions, in order."""
        device, count = sums.device, len(update.rows)
        widths = torch.tensor([len(unit.sequences) for unit in nodes])
        owner = torch.repeat_interleave(torch.arange(len(nodes)), widths).to(device)
        weights = torch.tensor([w for unit in nodes for w in self.rows[unit.index].weights], device=device)
        tokens = sum(
            weight * sum(mask) for unit in update.rows
            for weight, (_, mask) in zip(self.rows[unit.index].weights, unit.sequences, strict=True)
        )  # fmt: skip
        with torch.no_grad():
            chunks = zip(sums.split(widths.tolist()), weights.split(widths.tolist()), strict=True)
            right = sum(int(each.argmax() == wanted.argmax()) for each, wanted in chunks)
        return {
            "preference": sibling_loss(sums, owner, weights, len(nodes)).sum() / count,
            "sft": -(weights * sums).sum() / tokens,
            "accuracy": torch.tensor(right / count, device=device),
        }
