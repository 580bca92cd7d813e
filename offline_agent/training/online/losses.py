"""Losses of the policy-gradient family: functions of the agent tokens' log-probabilities, in any float format.

Observation tokens are not in the input, so they are in no sum, no count and no length. The divisor of the loss is known
before any forward pass (`token_weights`), so the losses of the parts of an update add up to the update's.
docs/objectives.md compares each objective with TRL's loss of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from offline_agent.training.offline.losses import segment_sums
from offline_agent.training.online.objectives import Correction, Objective

_LARGEST = 20.0  # bound of log-ratios: beyond it exp() overflows in float32, and 0 * inf makes the gradient NaN


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


class AgentTokens(NamedTuple):
    """The n agent tokens of a part of an update, of m whole trajectories.

    Attributes:
        logps: [n], log-probabilities (nats), with a graph.
        old: [n], the same under the weights that the round's updates begin with.
        advantages: [n].
        owner: int64 [n], to which trajectory a token belongs.
        weights: [m], the part's share of `token_weights`.
        ref: [n], `logps` under the reference; may be None where `Objective.kl` is 0.
        correction: [n], see `correction_weights`; None = 1 everywhere.
    """

    logps: Tensor
    old: Tensor
    advantages: Tensor
    owner: Tensor
    weights: Tensor | Sequence[float]
    ref: Tensor | None = None
    correction: Tensor | None = None


class LossTerms(NamedTuple):
    """A part's share of an update.

    Attributes:
        loss: 0-d, with a graph; the shares add up to the update's loss.
        figures: 0-d each, without; the shares add up to means over the update's agent tokens.
    """

    loss: Tensor
    figures: dict[str, Tensor]


def policy_loss(tokens: AgentTokens, objective: Objective, total: int) -> LossTerms:
    """Return a part's share of the loss, sum_t w_t (kl K3_t - c_t S_t), to be minimised.

    S is the surrogate (see `Objective`), c the correction; K3 = exp(D) - D - 1 with D = log pi_ref - log pi (Schulman
    2020; Shao et al. 2024, arXiv 2402.03300, eq. 4) and is not corrected. No trajectory may be split over parts:
    ratio="sequence" needs it whole. Log-ratios are cut off at 20 both ways, and D at 20 from above, so that their
    exponentials are finite in every float format.

    Args:
        tokens: The part's.
        objective: The objective to maximise.
        total: Agent tokens of the whole update.

    Returns:
        Figures: clip_low_fraction, clip_high_fraction (share of the tokens that a bound keeps from pulling; for cispo
        of those whose weight it cut), ratio_mean, and kl, the mean K3, only where there is a reference.

    Raises:
        ValueError: `objective.kl` is not 0 and there is no reference.
    """
    if objective.kl and tokens.ref is None:
        raise ValueError(f"objective {objective.name!r} has kl={objective.kl} and got no reference log-probs")
    logps, advantages, owner = tokens.logps, tokens.advantages, tokens.owner
    weights = torch.as_tensor(tokens.weights, dtype=logps.dtype, device=logps.device)
    pull = weights[owner]
    log_ratio = logps - tokens.old.detach()
    if objective.ratio == "sequence":
        counts = segment_sums(torch.ones_like(logps), owner, len(weights)).clamp(min=1)
        log_ratio = (segment_sums(log_ratio, owner, len(weights)) / counts)[owner]
    ratio = log_ratio.clamp(-_LARGEST, _LARGEST).exp()
    low, high = 1 - objective.clip_low, 1 + objective.clip_high
    bounded = ratio.clamp(low, high)
    under, over = ratio < low, ratio > high
    if objective.surrogate == "clip":
        surrogate = torch.minimum(ratio * advantages, bounded * advantages)
        # the minimum is the unbounded term, with its gradient, where the bound would help the objective
        under, over = under & (advantages < 0), over & (advantages > 0)
    else:
        surrogate = advantages * logps
        if objective.surrogate == "cispo":
            surrogate = bounded.detach() * surrogate
        else:
            under, over = torch.zeros_like(under), torch.zeros_like(over)
    if tokens.correction is not None:
        surrogate = tokens.correction.detach() * surrogate
    loss = -(pull * surrogate).sum()
    each = {"clip_low_fraction": under, "clip_high_fraction": over, "ratio_mean": ratio}
    if tokens.ref is not None:
        gap = (tokens.ref.detach() - logps).clamp(max=_LARGEST)
        k3 = gap.exp() - gap - 1
        each["kl"] = k3
        if objective.kl:
            loss = loss + objective.kl * (pull * k3).sum()
    return LossTerms(loss, {name: value.detach().to(logps.dtype).sum() / max(total, 1) for name, value in each.items()})


def correction_weights(
    train_logps: Tensor, sampler_logps: Tensor, owner: Tensor, mode: Correction, cap: float
) -> Tensor | None:
    """Return importance weights [n] for tokens of another implementation, or of older weights; no graph.

    The weight is w = exp(train - sampler) of a token, or of a trajectory: exp of the sum over its tokens. With older
    weights that is pi_prox / pi_behaviour of the decoupled objective of PPO, whose ratio is to the proximal policy, the
    weights that the updates begin with (Hilton et al. 2022, arXiv 2110.00641; AReaL, Fu et al. 2025, arXiv 2505.24298,
    section 5.2). The values of TRL's `vllm_importance_sampling_mode`, with `vllm_importance_sampling_clip_max=cap` and
    no lower bound: token_truncate and sequence_truncate: min(w, cap) (truncated importance sampling, Ionides 2008);
    token_mask and sequence_mask: w, or 0 where w > cap (masked importance sampling). off: None.

    Args:
        train_logps: [n], by the trainer, under the weights that the round's updates begin with.
        sampler_logps: [n], as the sampler gave them; NaN = not known, counted as equal to the trainer's.
        owner: int64 [n], whose token it is; a trajectory is whole.
        mode: One of the above.
        cap: Largest weight, above 0; TRL's default is 3.
    """
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
