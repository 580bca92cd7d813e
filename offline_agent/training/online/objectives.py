"""The policy-gradient family: pure functions of the agent tokens' log-probabilities, in any float format.

Observation tokens are never in the input, so they are in no sum, no count and no length. What the loss is divided by is
known before any forward pass (`token_weights`), so the losses of the parts of an update add up to the update's. How
each member differs from TRL's loss of the same name stands in docs/objectives.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.training.offline.losses import segment_sums

Baseline = Literal["mean", "leave_one_out", "none", "value"]
Scale = Literal["group_std", "batch_std", "none"]
Ratio = Literal["token", "sequence"]
Surrogate = Literal["clip", "cispo", "none"]
Average = Literal["trajectory", "token", "budget"]
Correction = Literal["off", "token_truncate", "sequence_truncate", "token_mask", "sequence_mask"]

_CHOICES = {"baseline": Baseline, "scale": Scale, "ratio": Ratio, "surrogate": Surrogate, "average": Average}
_LARGEST = 20.0  # of a log-ratio: past it exp() overflows in float32, and 0 * inf would make the gradient NaN


@dataclass(frozen=True)
class Objective:
    """What is maximised; every member of the family is a combination of these.

    Attributes:
        name: The entry of `OBJECTIVES` that it was made from, for manifests.
        baseline: What is taken off a reward: the group's mean, the mean of the group's others (RLOO), nothing, or a
            critic's value (advantages come from `advantages.gae`).
        scale: What an advantage is divided by: the standard deviation of the group's rewards or of the whole round's,
            or nothing. With `baseline="value"`, batch_std whitens the advantages of the round's agent tokens.
        ratio: Of each token, or one for a trajectory: exp of the mean log-ratio of its tokens (GSPO).
        surrogate: clip: min(r A, clip(r, 1 - clip_low, 1 + clip_high) A). cispo: sg(clip(r, ...)) A log pi. none:
            A log pi, whatever the ratio is.
        clip_low, clip_high: Distances from 1. clip_low = 1 is no lower bound.
        average: trajectory: the mean over the update's N trajectories of the means over their n_i tokens. token: the
            mean over all tokens. budget: the sum over all tokens / (N budget).
        budget: Tokens; only, and always, with `average="budget"`.
        kl: Weight of K3 against the reference; 0 = no reference is needed.
        dynamic: Groups without spread are not trained on; the roll-outs put other tasks in their place (DAPO).
        keep_spread: Share of the groups that are trained on, those of the largest spread; 1 = all (StarPO-S).
        overlong_soft, overlong_hard: A trajectory of more agent tokens than `overlong_soft` is punished, linearly down
            to -1 at `overlong_hard` and beyond (DAPO); None = never.
        overlong_filter: Nothing is learnt from the tokens of a trajectory that a limit of the policy's own cut; its
            reward stays in the group's mean (DAPO, section 3.4).
    """

    name: str
    baseline: Baseline = "mean"
    scale: Scale = "group_std"
    ratio: Ratio = "token"
    surrogate: Surrogate = "clip"
    clip_low: float = 0.2
    clip_high: float = 0.2
    average: Average = "trajectory"
    budget: int | None = None
    kl: float = 0.0
    dynamic: bool = False
    keep_spread: float = 1.0
    overlong_soft: int | None = None
    overlong_hard: int | None = None
    overlong_filter: bool = False

    def faults(self) -> list[str]:
        """Return every reason why this cannot be trained with; empty when it can."""
        found = [_choice(name, getattr(self, name), get_args(kind)) for name, kind in _CHOICES.items()]
        found += [
            f"{name} is {getattr(self, name)!r}; allowed: true or false"
            for name in ("dynamic", "overlong_filter")
            if type(getattr(self, name)) is not bool
        ]
        found += [
            _number("clip_low", self.clip_low, 0, 1),
            _number("clip_high", self.clip_high, 0),
            _number("kl", self.kl, 0),
            _number("keep_spread", self.keep_spread, 0, 1, above=True),
            *(_count(name, getattr(self, name)) for name in ("budget", "overlong_soft", "overlong_hard")),
        ]
        found = [fault for fault in found if fault]
        if found:  # how fields go together can only be said of fields that are right by themselves
            return found
        if self.average == "budget" and not self.budget:
            found.append(f"budget is {self.budget!r} and average='budget'; give a number of agent tokens of at least 1")
        if self.average != "budget" and self.budget is not None:
            found.append(f"budget is {self.budget} and average={self.average!r}; only average='budget' has a budget")
        if self.baseline == "none" and self.scale != "none":
            found.append(f"scale={self.scale!r} needs a baseline: a group without spread would be divided by almost 0")
        if self.baseline == "value" and self.scale == "group_std":
            found.append("scale='group_std' does not go with baseline='value'; allowed: batch_std, none")
        soft, hard = self.overlong_soft, self.overlong_hard
        if (soft is None) != (hard is None):
            found.append(f"overlong_soft is {soft} and overlong_hard is {hard}; give both or neither")
        elif soft is not None and hard is not None and soft >= hard:
            found.append(f"overlong_soft is {soft} and overlong_hard is {hard}; soft must be the smaller one")
        return found


def _choice(name: str, got: Any, allowed: Sequence[str]) -> str:
    if isinstance(got, str) and got in allowed:
        return ""
    return f"{name} is {got!r}; allowed: {', '.join(allowed)}.{did_you_mean(str(got), allowed)}"


def _number(name: str, got: Any, low: float, high: float | None = None, *, above: bool = False) -> str:
    right = isinstance(got, int | float) and not isinstance(got, bool) and isfinite(got)
    if right and (got > low if above else got >= low) and (high is None or got <= high):
        return ""
    bounds = f"{'above' if above else 'at least'} {low}" + (f", at most {high}" if high is not None else "")
    return f"{name} is {got!r}; allowed: {bounds}"


def _count(name: str, got: Any) -> str:
    if got is None or (isinstance(got, int) and not isinstance(got, bool) and got >= 0):
        return ""
    return f"{name} is {got!r}; allowed: a number of agent tokens, or none"


OBJECTIVES: Mapping[str, Objective] = MappingProxyType(
    {
        made.name: made
        for made in (
            # Shao et al. 2024, arXiv 2402.03300, with K3 on agent tokens alone
            Objective("grpo", kl=0.01),
            # Yu et al. 2025, arXiv 2503.14476; the lengths of the overlong shaping are the run's
            Objective("dapo", clip_high=0.28, average="token", dynamic=True),
            # Liu et al. 2025, arXiv 2503.20783; the budget is the run's
            Objective("dr_grpo", scale="none", average="budget"),
            # Ahmadian et al. 2024, arXiv 2402.14740; budget=1 with average="budget" is the paper's scale
            Objective("rloo", "leave_one_out", "none", surrogate="none", average="token", kl=0.01),
            # MiniMax 2025, arXiv 2506.13585: weights have no lower bound; upper bound 5 as in arXiv 2510.13786
            Objective("cispo", surrogate="cispo", clip_low=1.0, clip_high=4.0, average="token"),
            # Zheng et al. 2025, arXiv 2507.18071
            Objective("gspo", ratio="sequence", clip_low=3e-4, clip_high=4e-4),
            # Wang et al. 2025, arXiv 2504.20073, on the group baseline instead of a critic
            Objective("starpo_s", clip_high=0.28, keep_spread=0.25),
            # Williams 1992
            Objective("reinforce", "none", "none", surrogate="none", average="token"),
            # Schulman et al. 2017, arXiv 1707.06347
            Objective("ppo", "value", "batch_std", average="token", kl=0.01),
        )
    }
)


def objective(name: str, /, **changes: Any) -> Objective:
    """Return an objective by name, with some fields changed.

    Args:
        name: A key of `OBJECTIVES`.
        changes: Fields of `Objective`, but not its name.

    Raises:
        ConfigError: No such name or field, a value that is not allowed, or fields that do not go together; every fault
            found is in it.
    """
    if name not in OBJECTIVES:
        raise ConfigError(f"no objective {name!r}; allowed: {', '.join(OBJECTIVES)}.{did_you_mean(name, OBJECTIVES)}")
    known = [field.name for field in fields(Objective) if field.name != "name"]
    faults = [
        f"an objective has no field {key!r}; allowed: {', '.join(known)}.{did_you_mean(key, known)}"
        for key in changes
        if key not in known
    ]
    made = replace(OBJECTIVES[name], **{key: value for key, value in changes.items() if key in known})
    faults += [f"objective {name}: {fault}" for fault in made.faults()]
    if faults:
        raise ConfigError(faults)
    return made


def token_weights(counts: Sequence[int], objective: Objective) -> list[float]:
    """Return the weight of every agent token's term, for each trajectory.

    Args:
        counts: Agent tokens of every trajectory of the whole update, over all parts and processes. A trajectory
            without any (an empty completion) counts in the number of trajectories, and has weight 0.
        objective: Says how it is averaged.

    Returns:
        One weight a trajectory: 1 / (N n_i), 1 / sum n or 1 / (N budget).
    """
    number, total = len(counts), sum(counts)
    if objective.average == "trajectory":
        return [1 / (number * count) if count else 0.0 for count in counts]
    if objective.average == "token":
        return [1 / total if count else 0.0 for count in counts]
    assert objective.budget
    return [1 / (number * objective.budget) if count else 0.0 for count in counts]


class LossTerms(NamedTuple):
    """A part's share of an update.

    Attributes:
        loss: 0-d, with a graph; the shares add up to the update's loss.
        figures: 0-d each, without; the shares add up to means over the update's agent tokens.
    """

    loss: Tensor
    figures: dict[str, Tensor]


def policy_loss(
    logps: Tensor,
    old: Tensor,
    advantages: Tensor,
    owner: Tensor,
    weights: Tensor | Sequence[float],
    objective: Objective,
    *,
    ref: Tensor | None = None,
    correction: Tensor | None = None,
    total: int,
) -> LossTerms:
    """Return a part's share of the loss, sum_t w_t (kl K3_t - c_t S_t), to be minimised.

    S is the surrogate (see `Objective`); K3 = exp(D) - D - 1 with D = log pi_ref - log pi (Schulman 2020; Shao et al.
    2024, arXiv 2402.03300, eq. 4). No trajectory may be split over parts: ratio="sequence" needs it whole. Log-ratios
    are cut off at 20 both ways, and D at 20 from above, so that their exponentials are finite in every float format.

    Args:
        logps: [n], log-probabilities (nats) of the part's agent tokens, with a graph.
        old: [n], the same under the weights that the roll-outs were made with.
        advantages: [n].
        owner: int64 [n], to which of the part's m trajectories a token belongs.
        weights: [m], the part's share of `token_weights`.
        objective: What is maximised.
        ref: [n], the same under the reference; may be None where `objective.kl` is 0.
        correction: [n], c; see `correction_weights`. None = 1 everywhere. K3 is not corrected.
        total: Agent tokens of the whole update.

    Returns:
        Figures: clip_low_fraction, clip_high_fraction (share of the tokens that a bound keeps from pulling; for cispo
        of those whose weight it cut), ratio_mean, and kl, the mean K3, only where there is a reference.

    Raises:
        ValueError: `objective.kl` is not 0 and there is no reference.
    """
    if objective.kl and ref is None:
        raise ValueError(f"objective {objective.name!r} has kl={objective.kl} and got no reference log-probs")
    weights = torch.as_tensor(weights, dtype=logps.dtype, device=logps.device)
    pull = weights[owner]
    log_ratio = logps - old.detach()
    if objective.ratio == "sequence":
        counts = segment_sums(torch.ones_like(logps), owner, len(weights)).clamp(min=1)
        log_ratio = (segment_sums(log_ratio, owner, len(weights)) / counts)[owner]
    ratio = log_ratio.clamp(-_LARGEST, _LARGEST).exp()
    low, high = 1 - objective.clip_low, 1 + objective.clip_high
    bounded = ratio.clamp(low, high)
    under, over = ratio < low, ratio > high
    if objective.surrogate == "clip":
        surrogate = torch.minimum(ratio * advantages, bounded * advantages)
        under, over = under & (advantages < 0), over & (advantages > 0)
    else:
        surrogate = advantages * logps
        if objective.surrogate == "cispo":
            surrogate = bounded.detach() * surrogate
        else:
            under, over = torch.zeros_like(under), torch.zeros_like(over)
    if correction is not None:
        surrogate = correction.detach() * surrogate
    loss = -(pull * surrogate).sum()
    each = {"clip_low_fraction": under, "clip_high_fraction": over, "ratio_mean": ratio}
    if ref is not None:
        gap = (ref.detach() - logps).clamp(max=_LARGEST)
        k3 = gap.exp() - gap - 1
        each["kl"] = k3
        if objective.kl:
            loss = loss + objective.kl * (pull * k3).sum()
    return LossTerms(loss, {name: value.detach().to(logps.dtype).sum() / max(total, 1) for name, value in each.items()})


def correction_weights(
    train_logps: Tensor, sampler_logps: Tensor, owner: Tensor, mode: Correction, cap: float
) -> Tensor | None:
    """Return importance weights [n] for tokens sampled by another implementation of the same weights; no graph.

    The weight is w = exp(train - sampler) of a token, or of a trajectory: exp of the sum over its tokens. The values of
    TRL's `vllm_importance_sampling_mode`, with `vllm_importance_sampling_clip_max=cap` and no lower bound:
    token_truncate and sequence_truncate: min(w, cap) (truncated importance sampling, Ionides 2008);
    token_mask and sequence_mask: w, or 0 where w > cap (masked importance sampling). off: None.

    Args:
        train_logps: [n], by the trainer, under the weights that the roll-outs were made with.
        sampler_logps: [n], as the sampler gave them; NaN = not known, counted as equal to the trainer's.
        owner: int64 [n], whose token it is; a trajectory is whole.
        mode: One of the above.
        cap: Largest weight, above 0; TRL's default is 3.

    Raises:
        ConfigError: Another mode or cap.
    """
    faults = [_choice("importance correction", mode, get_args(Correction)), _number("cap", cap, 0, above=True)]
    if any(faults):
        raise ConfigError([fault for fault in faults if fault])
    if mode == "off":
        return None
    gap = train_logps.detach() - sampler_logps.detach()
    gap = gap.masked_fill(sampler_logps.isnan(), 0.0)
    if mode.startswith("sequence"):
        gap = segment_sums(gap, owner, int(owner.max()) + 1 if len(owner) else 0)[owner]
    weights = gap.exp()
    return weights.clamp(max=cap) if mode.endswith("truncate") else weights.masked_fill(weights > cap, 0.0)


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    owner: Tensor,
    weights: Tensor | Sequence[float],
    clip: float | None,
) -> Tensor:
    """Return a part's share of the critic's loss, 0-d: sum_t w_t 1/2 max((v - R)^2, (v' - R)^2).

    v' is v held within `clip` of what it was when the roll-outs were made, as implementations of PPO have it (described
    by Engstrom et al. 2020, arXiv 2005.12729).

    Args:
        values: [n], the critic's, at the part's agent tokens, with a graph.
        old_values: [n], those that `advantages.gae` was given.
        returns: [n], from the same.
        owner: int64 [n], to which of the part's m trajectories a token belongs.
        weights: [m], the part's share of `token_weights`.
        clip: In units of the return; None = do not hold.
    """
    weights = torch.as_tensor(weights, dtype=values.dtype, device=values.device)
    error = (values - returns.detach()) ** 2
    if clip is not None:
        held = old_values.detach() + (values - old_values.detach()).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns.detach()) ** 2)
    return 0.5 * (weights[owner] * error).sum()
