"""Settings and results of the trainers; plain values, no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from offline_agent.config.training import (
    AnchorSection,
    BatchSection,
    CheckpointSection,
    DpoSection,
    GuardSection,
    OptimizerSection,
)
from offline_agent.errors import ConfigError, did_you_mean

LOSSES = (
    "sigmoid", "ipo", "hinge", "sigmoid_norm", "dmpo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard",
    "apo_zero", "apo_down", "discopop",
)  # fmt: skip
"""The losses of `offline.losses.preference_loss`, by TRL's names where it has them; TRL's `sft` is `dpo.sft` here."""

# the defaults are declared with the keys
_OPTIMIZER, _BATCH, _CHECKPOINTS, _GUARD = OptimizerSection(), BatchSection(), CheckpointSection(), GuardSection()
_DPO, _ANCHOR = DpoSection(), AnchorSection()


@dataclass(frozen=True)
class TrainSettings:
    """Settings of a training.

    Attributes:
        learning_rate: The highest.
        schedule: The learning rate after the warm-up.
        warmup: Share of the updates in which the rate rises from 0.
        weight_decay, beta2: Of AdamW.
        clip: Largest norm of the gradient; larger ones are scaled down to it.
        epochs: Passes over the rows.
        max_updates: Optimizer updates at most; None = as the epochs say.
        rows: Rows of one update, over all processes.
        tokens: Most tokens of one forward pass, shared prefixes counted once; a longer row has a pass of its own.
        share: Compute histories that rows share once.
        every: Updates between two checkpoints.
        keep: Number of checkpoints that are kept.
        max_loss: An update whose loss is larger stops the run.
        max_gradient: An update whose gradient norm, before clipping, is larger stops the run.
        seed: Order of the rows, and all else that is random.
    """

    learning_rate: float = _OPTIMIZER.learning_rate
    schedule: Literal["constant", "linear", "cosine"] = _OPTIMIZER.schedule
    warmup: float = _OPTIMIZER.warmup
    weight_decay: float = _OPTIMIZER.weight_decay
    beta2: float = _OPTIMIZER.beta2
    clip: float = _OPTIMIZER.clip
    epochs: float = _OPTIMIZER.epochs
    max_updates: int | None = _OPTIMIZER.max_updates
    rows: int = _BATCH.rows
    tokens: int = _BATCH.tokens
    share: bool = True
    every: int = _CHECKPOINTS.every
    keep: int = _CHECKPOINTS.keep
    max_loss: float = _GUARD.max_loss
    max_gradient: float = _GUARD.max_gradient
    seed: int = 0


@dataclass(frozen=True)
class DpoSettings:
    """The preference loss.

    Attributes:
        loss: One of `LOSSES`.
        beta: Strength of the pull towards the reference (ipo's tau).
        soft_labels: 1 - confidence of a pair is its label noise (`dpo.label_noise`); sigmoid and dmpo only.
        unknown_noise: The label noise of a pair whose confidence is not known, in [0, 0.5].
        weights: Use the rows' weights.
        sft: Weight of the chosen sides' mean negative log-likelihood a token.
        dmpo_gamma: Discount of later turns in dmpo, in (0, 1).
        label_smoothing: Of robust and exo_pair.
        anchor_rows: Replayed trajectories in every update.
        anchor_weight: Weight of their mean negative log-likelihood a token.
    """

    loss: str = _DPO.loss
    beta: float = _DPO.beta
    soft_labels: bool = _DPO.soft_labels
    unknown_noise: float = _DPO.unknown_noise
    weights: bool = _DPO.weights
    sft: float = _DPO.sft
    dmpo_gamma: float = _DPO.dmpo_gamma
    label_smoothing: float = _DPO.label_smoothing
    anchor_rows: int = _ANCHOR.rows
    anchor_weight: float = _ANCHOR.weight

    def check(self) -> None:
        """Raise ConfigError with every fault."""
        faults = []
        if self.loss.startswith("kto"):
            faults.append(
                "dpo.loss: kto judges single answers, not pairs, and is not offered; allowed: " + ", ".join(LOSSES)
            )
        elif self.loss == "sft":
            faults.append("dpo.loss: sft is no preference loss; use train_sft, or dpo.sft beside another loss")
        elif self.loss not in LOSSES:
            near = did_you_mean(self.loss, LOSSES)
            faults.append(f"dpo.loss: got {self.loss!r}, allowed: {', '.join(LOSSES)}.{near}")
        if self.loss == "exo_pair" and self.label_smoothing == 0:
            faults.append("dpo.label_smoothing: exo_pair needs more than 0; its paper (2402.00856) uses 0.001")
        if faults:
            raise ConfigError(faults)


@dataclass(frozen=True)
class OnlineSettings:
    """Settings of how roll-outs become updates.

    Attributes:
        rounds: Batches of roll-outs, each played with one version of the weights.
        passes: Passes over a round's trajectories.
        minibatches: Updates of one pass; groups are not broken.
        correction: Importance weights where the sampler's log-probabilities differ from the trainer's; see
            `objectives.correction_weights`.
        cap: The largest of them.
        gamma, lam: Of generalised advantage estimation, a token; with a critic alone, like the following.
        value_weight: Weight of the value loss.
        value_clip: The largest change of a value in a round; None = any.
        value_rate: Learning rate of the value head.
        trunk: Whether the value loss trains the model below the head too.
        anchor_rows: Replayed trajectories in every update.
        anchor_weight: Weight of their mean negative log-likelihood a token.
    """

    rounds: int
    passes: int = 1
    minibatches: int = 1
    correction: Literal["off", "token_truncate", "sequence_truncate", "token_mask", "sequence_mask"] = "off"
    cap: float = 3.0
    gamma: float = 1.0
    lam: float = 1.0
    value_weight: float = 0.5
    value_clip: float | None = 0.2
    value_rate: float = 1e-3
    trunk: bool = False
    anchor_rows: int = 0
    anchor_weight: float = 0.1

    @property
    def per_round(self) -> int:
        """Updates of one round."""
        return self.passes * self.minibatches


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run, over all its sessions.

    Attributes:
        updates: Optimizer updates.
        resumed_at: Updates that were there already; 0 for a fresh run.
        seconds: Spent in updates.
        agent_tokens: Agent tokens whose log-probability was asked for, each row's counted.
        tokens: Tokens computed, shared prefixes once.
        raw_tokens: Tokens of all rows one by one.
        records: One for each update, first to last: `update` (from 1), `loss`, its parts and figures, measured before
            it.
        shares: Whether shared prefixes were computed once.
        reason: Why not; None where they were.
        reference: `stored`, `computed`: pairs whose reference log-probs were stored or computed; `checked`: stored ones
            computed again; `difference`: their largest difference a token (None where none was checked).
        warnings: Warnings for the user.
        end: The same figures of the last update's rows, measured after it; {} where they are not known.
    """

    updates: int
    resumed_at: int
    seconds: float
    agent_tokens: int
    tokens: int
    raw_tokens: int
    records: list[dict[str, float]]
    shares: bool
    reason: str | None
    reference: dict[str, float | int | None] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    end: dict[str, float] = field(default_factory=dict)

    @property
    def first(self) -> dict[str, float]:
        """The first update's record."""
        return self.records[0]

    @property
    def last(self) -> dict[str, float]:
        """The last update's record."""
        return self.records[-1]

    @property
    def curve(self) -> list[float]:
        """The loss of every update."""
        return [record["loss"] for record in self.records]
