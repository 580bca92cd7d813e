"""Selection of the pairs whose rejected side a model finds at least as likely as the chosen one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState

from offline_agent.training.data.updates import Unit, pair_units
from offline_agent.training.offline.reference import Sides, compute
from offline_agent.training.prefix_sharing.log_probabilities import Scorer, pack
from offline_agent.training.prefix_sharing.trie import Sequence as Tokens

if TYPE_CHECKING:
    from offline_agent.training.data.rows import PairRow


def misranked(model: Any, rows: Sequence[PairRow], *, tokens: int, share: bool = True) -> list[bool]:
    """Return for each pair whether the model ranks it wrongly: log p(rejected) >= log p(chosen).

    Both are sums over the tokens that the policy sampled, at temperature 1; the ranking accuracy of Chen et al. 2024
    (arXiv 2405.19534) is the share of the other pairs. Stored log-probabilities of the model are used where a row has
    them; the others are computed, in every process alike.

    Args:
        model: A causal language model or a PeftModel, as training begins with it. It is moved to the
            accelerator of this process, whole, and back.
        rows: The pairs; `ref_chosen` and `ref_rejected` are of this model, or None.
        tokens: Most tokens of one forward pass; a pair that is larger has a pass of its own.
        share: Compute shared prefixes once.
    """
    sums = {
        index: (sum(row.ref_chosen), sum(row.ref_rejected))
        for index, row in enumerate(rows)
        if row.ref_chosen is not None and row.ref_rejected is not None
    }
    sums |= _computed(model, [unit for unit in pair_units(rows) if unit.index not in sums], tokens, share)
    return [rejected >= chosen for chosen, rejected in (sums[index] for index in range(len(rows)))]


def _computed(model: Any, units: Sequence[Unit], tokens: int, share: bool) -> dict[int, tuple[float, float]]:
    """Return the sums of the chosen and of the rejected side by the index of a unit."""
    if not units:
        return {}
    before, mode, device = next(model.parameters()).device, model.training, PartialState().device
    model.to(device).eval()
    try:
        scorer = Scorer(model, share=share)

        def score(part: Sequence[Unit]) -> Iterable[Sides]:
            packed = pack([Tokens(*sequence) for unit in part for sequence in unit.sequences]).to(device)
            logps = scorer(model, packed).logps
            sides = [logps[row] for row in packed.rows]
            return zip(sides[::2], sides[1::2], strict=True)

        with torch.no_grad():
            found = compute(units, score, tokens, share)
    finally:
        model.to(before).train(mode)
    return {index: (float(sides[0].double().sum()), float(sides[1].double().sum())) for index, sides in found.items()}
