"""Check that a model computes the same log-probabilities over a trie as row by row, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from offline_agent.training.prefix_sharing.trie import Pack, Sequence


def forest(vocabulary: int) -> list[Sequence]:
    """Return a small forest, every token scored: two roots, branches at several depths, a prefix, uneven leaves."""
    generator = torch.Generator().manual_seed(0)

    def some(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(vocabulary, (count,), generator=generator).tolist())

    trunk, limb = some(17), some(9)
    ways = [trunk + limb + some(n) for n in (1, 6, 11)] + [trunk + some(13), trunk + some(4), trunk, some(12)]
    return [Sequence(way, (0, *[1] * (len(way) - 1))) for way in ways]


def alone(model: Any, sequences: list[Sequence], pack: Pack) -> torch.Tensor:
    """Return the log-probabilities [S] of a pack of fully scored sequences by plain passes of one each."""
    found = pack.target.new_zeros(pack.scored, dtype=torch.float32)
    for sequence, row in zip(sequences, pack.rows, strict=True):
        ids = torch.tensor(sequence.ids, device=found.device)
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
        found[row] = torch.log_softmax(logits.float(), -1).gather(-1, ids[1:, None])[:, 0]
    return found


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Turn dropout and gradients off inside the block; every module is as it was after it."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
