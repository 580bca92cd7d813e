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


class PairSums(NamedTuple):
    """What a preference loss sees of B pairs; all tensors [B]."""

    chosen: Tensor
    rejected: Tensor
    ref_chosen: Tensor
    ref_rejected: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor


def preference_loss(name: str, sums: PairSums, beta: float, noise: Tensor | None = None) -> Tensor:
    """Return the loss of each pair [B].

    sigmoid: DPO (Rafailov et al. 2023, eq. 7) with label noise e in [0, 1] (cDPO, Mitchell 2023):
        -(1 - e) log s(beta d) - e log s(-beta d), d the difference of the log-ratios.
    dmpo: the same on sums weighted by `turn_weights` (Shi et al. 2024, arXiv 2406.14868).
    hinge: max(0, 1 - beta d) (SLiC, Zhao et al. 2023).
    ipo: (d' - 1 / (2 beta))^2, d' the difference of the log-ratios a token, as TRL has it (Azar et al. 2023, eq. 17).
    sigmoid_norm: -log s(beta d'), as TRL has it.

    Args:
        name: One of the above.
        sums: The pairs.
        beta: Strength of the pull towards the reference.
        noise: [B], probability that the label is wrong; None = 0. Used by sigmoid and dmpo alone.

    Raises:
        ValueError: Another name.
    """
    chosen, rejected = sums.chosen - sums.ref_chosen, sums.rejected - sums.ref_rejected
    if name in ("sigmoid", "dmpo"):
        logits = beta * (chosen - rejected)
        if noise is None:
            return -F.logsigmoid(logits)
        return -(1 - noise) * F.logsigmoid(logits) - noise * F.logsigmoid(-logits)
    if name == "hinge":
        return torch.relu(1 - beta * (chosen - rejected))
    each = chosen / sums.chosen_tokens.clamp(min=1) - rejected / sums.rejected_tokens.clamp(min=1)
    if name == "ipo":
        return (each - 1 / (2 * beta)) ** 2
    if name == "sigmoid_norm":
        return -F.logsigmoid(beta * each)
    raise ValueError(f"no preference loss {name!r}")


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
