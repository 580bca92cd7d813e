"""Keys, settings and results of the trainers; plain values, no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import model_validator

from offline_agent.sections import Section, key, other_default

Loss = Literal["sigmoid", "ipo", "sigmoid_norm", "dmpo", "robust"]
"""The losses of `offline.losses.preference_loss`, by TRL's names where it has them; TRL's `sft` is `dpo.sft` here."""

class ScratchSection(Section):
    """A new model in place of `model.path`: Llama's shape, with a tokenizer learnt from what it is trained on."""

    layers: int = key(0, "layers of a new model with random weights; 0 = train model.path instead", ge=0, le=1024)
    hidden_size: int = key(128, "width", ge=16, le=65536)
    heads: int = key(4, "attention heads", ge=1, le=1024)
    key_value_heads: int = key(4, "heads of keys and values; fewer are faster to sample from", ge=1, le=1024)
    vocabulary: int = key(1024, "most tokens of the new tokenizer", ge=300, le=2**20)
    max_positions: int = key(2048, "longest sequence in tokens", ge=64, le=2**24)
    pictures: int = key(
        0, "side in pixels of the square that pictures are scaled to, for a model with a vision tower; 0 = none", ge=0,
        le=4096,
    )  # fmt: skip
    patch_size: int = key(16, "side of a picture's patch, which is one id", ge=2, le=256)
    reading: float = key(
        0.0,
        "passes over the trajectories that predict every token, the environment's too, before the policy's own alone",
        ge=0,
    )

    @model_validator(mode="after")
    def _divides(self) -> ScratchSection:
        if self.hidden_size % self.heads or self.heads % self.key_value_heads:
            raise ValueError(
                f"scratch: hidden_size ({self.hidden_size}) must be a multiple of heads ({self.heads}), and heads of "
                f"key_value_heads ({self.key_value_heads})"
            )
        if self.pictures % self.patch_size:
            raise ValueError(f"scratch: pictures ({self.pictures}) must be a multiple of patch_size={self.patch_size}")
        return self


class LoraSection(Section):
    """Low-rank adapters (peft) in place of full training."""

    rank: int = key(0, "rank of the adapters; 0 = train all weights", ge=0, le=65536)
    alpha: float | None = key(None, "scale; null = twice the rank", gt=0)
    targets: str = key("all-linear", "modules that get adapters, separated by commas")


class AdamWSection(Section):
    """AdamW and its schedule."""

    learning_rate: float = key(3e-4, "highest learning rate", gt=0, le=1e38)
    schedule: Literal["constant", "linear", "cosine"] = key("cosine", "what follows the warm-up")
    warmup: float = key(0.05, "share of the updates in which the rate rises from 0", ge=0, le=1)
    weight_decay: float = key(0.01, "of AdamW", ge=0)
    clip: float = key(1.0, "largest norm of the gradient", gt=0)


class OptimizerSection(AdamWSection):
    """AdamW and its schedule."""

    epochs: float = key(1.0, "passes over the rows", gt=0, le=10**6)
    max_updates: int | None = key(None, "optimizer updates at most; null = as the epochs say", ge=1)


class PassSection(Section):
    """The packs: the rows of one forward pass."""

    tokens: int = key(8192, "most tokens of one forward pass, shared prefixes counted once", ge=64, le=2**31)
    max_length: int | None = key(None, "longer rows are left out and counted; null = what the model was made for", ge=8)
    share_prefixes: Literal["auto", "off"] = key("auto", "compute histories that rows share once; off = each row apart")
    gradient_checkpointing: bool | None = key(
        None,
        "compute each layer again in the backward pass: a fraction of the memory, up to a third more time; null = "
        "for models of 50 million weights and more",
    )


class BatchSection(PassSection):
    """The batch: the rows of one optimizer update."""

    rows: int = key(32, "rows (pairs or trajectories) of one update, over all processes", ge=1, le=10**7)


class CheckpointSection(Section):
    """Checkpoints a stopped run goes on from."""

    every: int = key(50, "updates between two", ge=1, free=True)
    keep: int = key(2, "how many are kept", ge=1, free=True)


class GuardSection(Section):
    """The conditions on which training stops, so that good weights are kept."""

    max_loss: float = key(50.0, "an update whose loss is larger, or not a number, stops the run", gt=0)
    max_gradient: float = key(1e4, "an update whose gradient norm, before clipping, is larger stops the run", gt=0)


class TrainSettings(OptimizerSection, BatchSection, CheckpointSection, GuardSection):
    """Settings of a training: the keys of its sections, and what a run decides.

    Attributes:
        seed: Order of the rows, and all else that is random.
        mixed: Whether passes are in bfloat16 where weights are in float32 (Micikevicius et al. 2018, arXiv 1710.03740).
    """

    seed: int = 0
    mixed: bool = False

    @classmethod
    def of(cls, *sections: Section, **decided: Any) -> TrainSettings:
        """Return the settings that have the keys of the sections, and what the run decides."""
        return cls(**{name: value for each in sections for name, value in each}, **decided)


class DpoSection(Section):
    """The preference loss."""

    loss: Loss = key("sigmoid", "the loss of a pair (docs/objectives.md)")
    beta: float = key(0.1, "strength of the pull towards the reference", gt=0)
    soft_labels: bool = key(True, "1 - confidence of a pair is its label noise (sigmoid, dmpo; docs/pairs.md)")
    unknown_noise: float = key(
        0.1, "label noise of pairs whose confidence is not known, such as those of your own files", ge=0, le=0.5
    )
    weights: bool = key(True, "use the rows' weights")
    sft: float = key(0.2, "weight of the chosen side's mean negative log-likelihood", ge=0)
    dmpo_gamma: float = key(0.9, "discount of later turns in dmpo", gt=0, lt=1)
    label_smoothing: float = key(0.0, "of robust", ge=0, lt=0.5)
    reference: Literal["auto", "computed"] = key(
        "auto", "auto = stored log-probs where the hashes match, else computed"
    )


class AnchorSection(Section):
    """Replay of verified successes beside the pairs."""

    rows: int = key(8, "trajectories of filtered/ in every update; 0 = none", ge=0)
    weight: float = key(1.0, "weight of their mean negative log-likelihood", ge=0)
    runs: tuple[str, ...] = key(
        (), "run directories whose filtered/ is replayed; none = those of data.runs", strict=False
    )


class DpoSettings(DpoSection):
    """The preference loss, and the replayed trajectories beside the pairs."""

    anchor_rows: int = other_default(AnchorSection, "rows", AnchorSection().rows)
    anchor_weight: float = other_default(AnchorSection, "weight", AnchorSection().weight)


class RewardModelSection(Section):
    """The training of a reward model by AdamW."""

    epochs: int = key(3, "passes over the trajectories", ge=1, le=1000)
    learning_rate: float = key(1e-4, "of AdamW", gt=0, le=1)
    rows: int = key(8, "trajectories of one update", ge=1, le=4096)
    weight_decay: float = key(0.01, "of AdamW", ge=0, le=1)
    clip: float = key(1.0, "largest norm of a gradient", gt=0)


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
