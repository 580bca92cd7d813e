"""An algorithm's part of the online trainer: a round's tokens with the components of the loss, and their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from offline_agent.errors import ConfigError
from offline_agent.seeding import derive_seed
from offline_agent.training.data.updates import Unit, Update, policy_tokens
from offline_agent.training.online import advantages
from offline_agent.training.online.distillation import blended
from offline_agent.training.online.losses import (
    AgentTokens,
    correction_weights,
    policy_loss,
    token_weights,
    value_loss,
)
from offline_agent.training.online.objectives import Objective
from offline_agent.training.online.settings import OnlineSettings

if TYPE_CHECKING:
    from offline_agent.training.online.samples import TrainingSample

Critic = Callable[[Tensor], Tensor]

VALUE_WEIGHT = 0.5
"""Weight of the critic's loss beside the policy's (Schulman et al. 2017)."""


@dataclass(frozen=True)
class PlayedRound:
    """The samples and figures of a round.

    Attributes:
        samples: The samples to train on; may be empty.
        temperature: That they were sampled at.
        figures: Of the round, for the record of each of its updates.
    """

    samples: Sequence[TrainingSample]
    temperature: float
    figures: Mapping[str, Any] = field(default_factory=dict)


class Algorithm(NamedTuple):
    """An algorithm online: all that the trainer knows of one.

    Attributes:
        objective: Says how tokens are weighed.
        online: Settings of the updates.
        teacher: The model that `objective.teacher` names; None = the policy itself, a server, or nobody.
    """

    objective: Objective
    online: OnlineSettings
    teacher: Any = None

    @property
    def needs_reference(self) -> bool:
        """Whether the loss asks for log-probabilities of the reference."""
        return self.objective.needs_reference

    @property
    def needs_values(self) -> bool:
        """Whether a critic has to be trained beside the model."""
        return self.objective.needs_values

    def batch(self, played: PlayedRound) -> RoundBatch:
        """Return a round under training."""
        return RoundBatch(played, self)


@dataclass
class RoundBatch:
    """A round under training; every list is by the samples' places.

    The loss of an update is `policy` (the surrogate, with K3 against the reference), plus `VALUE_WEIGHT` times `value`
    (the critic's error).

    Attributes:
        played: The round.
        algorithm: Says which components there are, and the weights.
        units: Of the samples.
        advantages: float32 [n] each.
        old: [n] each, log-probabilities under the weights that the round's updates begin with (those that played, with
            `rollouts.behind=0`), at the round's temperature; empty where the ratio is 1 by construction.
        ref: The same under the reference; empty where nobody asks.
        teacher: The same under the teacher, NaN where it has none; empty without one.
        values, returns: The critic's, and what it learns; empty without one.
    """

    played: PlayedRound
    algorithm: Algorithm
    units: list[Unit] = field(init=False)
    advantages: list[Tensor] = field(default_factory=list)
    old: list[Tensor] = field(default_factory=list)
    ref: list[Tensor] = field(default_factory=list)
    teacher: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    returns: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the units; raises ConfigError where a sample's first token is the policy's."""
        self.units = [unit_of(sample, place) for place, sample in enumerate(self.played.samples)]

    def credit(self) -> None:
        """Fill in advantages: the samples' own, or by `values`, where there is a critic; then what it learns, too."""
        samples, (objective, online, _) = self.played.samples, self.algorithm
        if not objective.needs_values:
            self.advantages = [_tensor(sample.advantages or ()) for sample in samples]
            return
        found = []
        for sample, values in zip(samples, self.values, strict=True):
            earned = sample.earned or (*[0.0] * (len(sample.turns) - 1), sample.reward)
            rewards = advantages.token_rewards(earned, sample.turns)
            estimate, returns = advantages.gae(rewards, values.tolist(), online.critic.gamma, online.critic.lam)
            found.append(estimate)
            self.returns.append(torch.tensor(returns, dtype=torch.float32))
        if objective.scale == "batch_std":
            found = advantages.whiten(found)
        self.advantages = [_tensor(estimate) for estimate in found]

    def asked(self) -> list[Unit]:
        """Return what a teacher in this process scores: the units, in hindsight where it is the policy itself."""
        if self.algorithm.teacher is not None:
            return self.units
        shown = [(place, sample, sample.hindsight) for place, sample in enumerate(self.played.samples)]
        return [
            unit_of(replace(sample, input_ids=seen[0], action_mask=seen[1], starts=seen[2]), place)
            for place, sample, seen in shown
            if seen is not None
        ]

    def share(self, part: int, seed: int) -> list[Unit]:
        """Return the trajectories of the round's update `part`: groups unbroken, in another order each pass."""
        online = self.algorithm.online
        passed, place = divmod(part, online.objective.minibatches)
        groups: dict[str, list[Unit]] = {}
        for unit in self.units:
            groups.setdefault(unit.tree, []).append(unit)
        order = list(groups.values())
        if online.per_round > 1:
            chance = torch.Generator().manual_seed(derive_seed(seed, passed) % 2**63)
            order = [order[i] for i in torch.randperm(len(order), generator=chance).tolist()]
        return [unit for group in order[place :: online.objective.minibatches] for unit in group]

    def sampled(self, places: Sequence[int]) -> Tensor:
        """Return the sampler's log-probabilities [n] of some samples; NaN where none are known at the temperature."""
        known = self.played.temperature == 1.0
        return torch.cat([
            torch.tensor(sample.logps if known and sample.logps is not None else [float("nan")] * sample.tokens)
            for sample in (self.played.samples[place] for place in places)
        ])  # fmt: skip

    def loss(
        self, update: Update, units: Sequence[Unit], rows: Sequence[Tensor], scores: Any, critic: Critic | None
    ) -> dict[str, Tensor]:
        """Return one pack's share of an update's loss, its components and figures.

        Args:
            update: The whole update.
            units: The pack's.
            rows: Of each unit the indices of its tokens in `scores`.
            scores: The pack's.
            critic: Maps hidden states [S, H] to values [S]; None without one.

        Returns:
            0-d each; `loss` and the components that the pack has with a graph, figures without.
        """
        parts = self._policy(update, list(zip(units, rows, strict=True)), scores, critic)
        value = VALUE_WEIGHT * parts["value"] if "value" in parts else 0.0
        return {**parts, "loss": parts["policy"] + value}

    def _policy(
        self, update: Update, fresh: Sequence[tuple[Unit, Tensor]], scores: Any, critic: Critic | None
    ) -> dict[str, Tensor]:
        """Return `policy`, `value` where there is a critic, and the figures of a pack's trajectories."""
        device, (objective, online, _) = scores.logps.device, self.algorithm
        counts = [unit.scored for unit in update.rows]
        total = sum(counts)
        of_unit = dict(zip((unit.index for unit in update.rows), token_weights(counts, objective), strict=True))
        places = [unit.index for unit, _ in fresh]
        weights = torch.tensor([of_unit[place] for place in places], device=device)
        rows = torch.cat([row for _, row in fresh])
        owner = torch.repeat_interleave(torch.tensor([unit.scored for unit, _ in fresh])).to(device)

        def of(kept: Sequence[Tensor]) -> Tensor:
            return torch.cat([kept[place] for place in places]).to(device)

        logps = scores.logps[rows]
        old = of(self.old) if self.old else logps.detach()  # the weights at the start: the ratio is 1, with a gradient
        sampled = self.sampled(places).to(device)
        weighed = online.sampler.weights(online.behind)
        correction = correction_weights(old, sampled, owner, weighed, online.sampler.cap)
        ref = of(self.ref) if self.ref else None
        given, figures = of(self.advantages), {}
        if self.teacher:
            told = of(self.teacher)
            given, gaps = blended(given, old, told, objective.distil)
            figures = {"teacher_kl": gaps.sum() / total, "taught": (~told.isnan()).sum() / total}
        tokens = AgentTokens(logps, old, given, owner, weights, ref, correction)
        terms = policy_loss(tokens, objective, total)
        parts = {"policy": terms.loss, **terms.figures, **figures}
        parts["entropy"] = scores.entropy[rows].sum() / total
        parts["mismatch"] = (old - sampled).abs().nan_to_num(0.0).sum() / total
        if critic is not None:
            hidden = scores.hidden if online.critic.trunk else scores.hidden.detach()
            held = of(self.values), of(self.returns)
            parts["value"] = value_loss(critic(hidden)[rows], *held, owner, weights, online.critic.clip)
        return parts


def _tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def unit_of(sample: TrainingSample, place: int) -> Unit:
    """Return a sample as a unit of an update.

    Raises:
        ConfigError: Its first token is the policy's.
    """
    side = policy_tokens(sample.input_ids, sample.action_mask, sample.starts)
    if sum(sum(sequence.scored) for sequence in side) != sample.tokens:
        raise ConfigError(f"{sample.name}: its first token is the policy's, but nothing comes before it to sample from")
    return Unit(sample.name, place, (side,), tree=sample.task_id, node="")
