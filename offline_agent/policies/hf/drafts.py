"""Guesses of the ids that come next, so that one pass over the model can confirm several of them.

A guess changes nothing in what is answered. Each id is drawn from its own logits and its own seed as without guesses;
where the drawn id is the guessed one, the next one's logits are there already (Leviathan et al., 2023, with the model's
own habit as the draft). Actions are formulas with a few decisions in them, so two guesses in three come true.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_PAIRS = 200_000


class DraftTable:
    """Which id followed two others the last time an action was sampled."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, int], int] = {}

    def learn(self, before: Sequence[int], ids: Sequence[int]) -> None:
        """Take note of a sampled action `ids` after a prompt that ends in `before`."""
        if len(self._after) > MOST_PAIRS:
            self._after.clear()
        row = [*before[-2:], *ids]
        for first, second, third in zip(row, row[1:], row[2:], strict=False):
            self._after[first, second] = third

    def guess(self, ids: Sequence[int], most: int) -> list[int]:
        """Return up to `most` ids that may come after `ids`."""
        out: list[int] = []
        if most < 1 or len(ids) < 2:
            return out
        first, second = ids[-2], ids[-1]
        while len(out) < most:
            third = self._after.get((first, second))
            if third is None:
                break
            out.append(third)
            first, second = second, third
        return out
