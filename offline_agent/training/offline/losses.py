"""Preference losses on sums over agent tokens; pure functions of tensors in any float format.

Everywhere B is the number of pairs; `chosen`, `rejected` [B] are sums of log-probabilities (nats) over the agent tokens
after the shared prefix, `ref_*` the same under the reference, `*_tokens` [B] how many tokens were summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from offline_agent.training.settings import Loss


class PairSums(NamedTuple):
    """The sums of B pairs from which a preference loss is computed; all tensors [B]."""

    chosen: Tensor
    rejected: Tensor
    ref_chosen: Tensor
    ref_rejected: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor


def preference_loss(
    name: Loss, sums: PairSums, beta: float, noise: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """Return the loss of each pair [B].

    With c and r the log-ratios of chosen and rejected (log pi less log of the reference), d = c - r, s the sigmoid:

    sigmoid: DPO (Rafailov et al. 2023, eq. 7) with label noise e in [0, 1] (cDPO, Mitchell 2023):
        -(1 - e) log s(beta d) - e log s(-beta d).
    dmpo: the same on sums weighted by `turn_weights` (Shi et al. 2024, arXiv 2406.14868).
    ipo: (d' - 1 / (2 beta))^2, d' the difference of the log-ratios a token, as TRL has it (Azar et al. 2023, eq. 17).
    sigmoid_norm: -log s(beta d'), as TRL has it.
    robust: (-(1 - e) log s(beta d) + e log s(-beta d)) / (1 - 2 e), e the smoothing (arXiv 2403.00409).

    Args:
        name: One of the above.
        sums: The pairs.
        beta: Strength of the pull towards the reference.
        noise: [B], probability that the label is wrong; None = 0. Used by sigmoid and dmpo alone.
        smoothing: e of robust, in [0, 0.5).
    """
    chosen, rejected = sums.chosen - sums.ref_chosen, sums.rejected - sums.ref_rejected
    logits = beta * (chosen - rejected)
    if name in ("sigmoid", "dmpo"):
        if noise is None:
            return -F.logsigmoid(logits)
        return -(1 - noise) * F.logsigmoid(logits) - noise * F.logsigmoid(-logits)
    if name == "robust":
        return (smoothing * F.logsigmoid(-logits) - (1 - smoothing) * F.logsigmoid(logits)) / (1 - 2 * smoothing)
    each = chosen / sums.chosen_tokens.clamp(min=1) - rejected / sums.rejected_tokens.clamp(min=1)
    return (each - 1 / (2 * beta)) ** 2 if name == "ipo" else -F.logsigmoid(beta * each)


def turn_weights(mask: Sequence[int], gamma: float) -> list[float]:
    """Return DMPO's weight of every masked token, in order.

    phi(t, T) = (1 - gamma^(T - t)) / (1 - gamma^T) for turn t = 0 .. T-1 of T (Shi et al. 2024, arXiv 2406.14868): 1
    for the first turn, less for later ones. A turn is a run of ones in the mask; turns are counted from where the two
    sides part, since what comes before is the same in both.

    Args:
        mask: int [n], 1 = agent token, of what follows the shared prefix.
        gamma: In (0, 1).
    """
    turns: list[int] = []
    before = 0
    for value in mask:
        if value and not before:
            turns.append(0)
        if value:
            turns[-1] += 1
        before = value
    total = len(turns)
    weights = [(1 - gamma ** (total - t)) / (1 - gamma**total) for t in range(total)]
    return [weight for weight, count in zip(weights, turns, strict=True) for _ in range(count)]


def segment_sums(values: Tensor, owner: Tensor, count: int) -> Tensor:
    """Return [count]: the sum of the values [n] of each owner int [n]; 0 for an owner of none."""
    return values.new_zeros(count).index_add(0, owner, values)


def sequence_sums(rows: Sequence[Tensor], values: Tensor) -> Tensor:
    """Return [sequences]: for each sequence the sum of its tokens' values; `rows` are their places in `values`."""
    sizes = torch.tensor([len(row) for row in rows])
    owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(values.device)
    return segment_sums(values[torch.cat(list(rows))], owner, len(sizes))


def label_noise(confidence: float | None, rest_confidence: float | None, unknown: float) -> float:
    """Return the probability that a pair's label is wrong, in [0, 0.5].

    It is 1 less the lower of `confidence` and `rest_confidence`, as far as they are known. Beyond one half the loss
    would prefer the rejected side, though the ends of both were verified; at one half the pair only holds the policy
    to the reference.

    Args:
        confidence, rest_confidence: Of the pair; see `training.data.rows.PairRow`.
        unknown: The noise where `confidence` is not known.
    """
    sure = 1.0 - unknown if confidence is None else confidence
    return min(0.5, 1.0 - (sure if rest_confidence is None else min(sure, rest_confidence)))
