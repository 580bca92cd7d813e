"""Per-token log-probabilities in the form that TRL's own loss code takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def as_trl_sees(
    pairs: Sequence[tuple[Tensor, Tensor]], ref: Tensor
) -> tuple[Callable[..., SimpleNamespace], dict[str, Tensor]]:
    """Return a stand-in for the model, which answers with the log-probabilities, and the batch that goes with it.

    Args:
        pairs: For each of B pairs the agent tokens' log-probabilities, chosen [n] and rejected [m].
        ref: [B, 2], the reference's sums of chosen and rejected.
    """
    sides = [chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs]
    device = sides[0].device
    values = pad_sequence(list(sides), batch_first=True)  # [2B, n]
    mask = pad_sequence([torch.ones_like(side, dtype=torch.long) for side in sides], batch_first=True)
    none = torch.zeros_like(values)

    def answer(**more: Any) -> SimpleNamespace:
        return SimpleNamespace(
            log_probs=values, entropy=none, mean_logits=none, is_top1=none.bool(), log_sum_sq_probs=none
        )

    first = torch.zeros(len(sides), 1, dtype=torch.long, device=device)  # the token that nothing comes before
    full = torch.cat([first, mask], dim=1)
    inputs = {
        "input_ids": torch.zeros_like(full), "attention_mask": torch.cat([first + 1, mask], dim=1),
        "completion_mask": full,
        "ref_chosen_logps": ref[:, 0].to(device), "ref_rejected_logps": ref[:, 1].to(device),
    }  # fmt: skip
    return answer, inputs
