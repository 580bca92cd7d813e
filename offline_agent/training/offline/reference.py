"""Log-probabilities of the pairs under the start model: stored ones where they are usable, computed ones otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from offline_agent.errors import TrainingError
from offline_agent.training.data.updates import Unit, counted, fill

Sides = tuple[torch.Tensor, torch.Tensor]

CHECKED = 8
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_LOOSE = 0.1  # bfloat16 and float16: two kernels differ by as much now and then


@dataclass(frozen=True)
class Reference:
    """The reference of every pair.

    Attributes:
        sides: For every pair the log-probabilities (nats) of the agent tokens, in order, of chosen [n] and rejected
            [m]; float32 on the CPU.
        stored, computed: Number of pairs whose log-probabilities were stored in the rows, and of the others.
        checked: Number of stored ones that were computed again, to see whether they are this model's.
        difference: The largest difference a token found by that; None where nothing was checked.
    """

    sides: list[Sides]
    stored: int
    computed: int
    checked: int
    difference: float | None

    def figures(self) -> dict[str, float | int | None]:
        """Return the counts."""
        names = ("stored", "computed", "checked", "difference")
        return {name: getattr(self, name) for name in names}


class Packs(NamedTuple):
    """Passes of the start model.

    Attributes:
        score: Returns the log-probabilities of a pack's units, for each unit both sides.
        tokens, share: As for training; see `updates.fill`.
    """

    score: Callable[[Sequence[Unit]], Iterable[Sides]]
    tokens: int
    share: bool

    def compute(self, units: Sequence[Unit]) -> dict[int, Sides]:
        """Return the log-probabilities of both sides' agent tokens by the index of a unit; float32 on the CPU."""
        out: dict[int, Sides] = {}
        for pack in counted(fill(units, self.tokens, self.share), "log-probabilities of the start model"):
            for unit, (chosen, rejected) in zip(pack, self.score(pack), strict=True):
                out[unit.index] = (chosen.detach().float().cpu(), rejected.detach().float().cpu())
        return out


def reference(units: Sequence[Unit], packs: Packs, dtype: torch.dtype) -> Reference:
    """Return the reference of every pair, before the first update.

    Args:
        units: The pairs.
        packs: Computes those that are not stored.
        dtype: Of the weights; decides how far stored and computed ones may differ.

    Raises:
        TrainingError: The stored ones are not this model's.
    """
    sides: dict[int, Sides] = {}
    for unit in units:
        row = unit.row
        if row.ref_chosen is not None and row.ref_rejected is not None:
            sides[unit.index] = (_masked(row.ref_chosen, row.chosen_mask), _masked(row.ref_rejected, row.rejected_mask))
    stored = [unit for unit in units if unit.index in sides]
    missing = [unit for unit in units if unit.index not in sides]
    checked, difference = _check(stored, sides, packs, dtype)
    sides |= packs.compute(missing)
    return Reference([sides[unit.index] for unit in units], len(stored), len(missing), checked, difference)


def _check(
    stored: Sequence[Unit], sides: dict[int, Sides], packs: Packs, dtype: torch.dtype
) -> tuple[int, float | None]:
    """Compute some of the stored ones again: a hash that agrees is no proof."""
    sample = [stored[k * len(stored) // CHECKED] for k in range(CHECKED)] if len(stored) > CHECKED else stored
    if not sample:
        return 0, None
    again = packs.compute(sample)
    allowed = TOLERANCE.get(dtype, _LOOSE)
    worst, at = 0.0, sample[0]
    for unit in sample:
        for new, old in zip(again[unit.index], sides[unit.index], strict=True):
            far = float((new - old).abs().max()) if len(new) == len(old) and len(new) else float(len(new) != len(old))
            if not far <= worst:  # not a number counts as far
                worst, at = far, unit
    if not worst <= allowed:
        raise TrainingError(
            f"stored reference log-probs are not this model's: {at.name} differs by {worst:.3g} a token, allowed "
            f"{allowed:g}. Name the model that made the pairs (model.path), or set dpo.reference=computed"
        )
    return len(sample), worst


def _masked(values: Sequence[float], mask: Sequence[int]) -> torch.Tensor:
    return torch.tensor([v for v, m in zip(values, mask, strict=True) if m], dtype=torch.float32)
