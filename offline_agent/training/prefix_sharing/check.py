"""Check that a model computes the same log-probabilities over a trie as row by row, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from offline_agent.training.prefix_sharing.trie import Pack, Sequence

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LENGTH_DEPENDENT = ("dynamic", "longrope")  # rotary angles that change with the longest position of a call


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


def distance(model: Any, found: torch.Tensor, known: torch.Tensor) -> tuple[float, float]:
    """Return the largest difference of log-probabilities and the largest allowed: rounding of the model's format."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    relative = TOLERANCE.get(dtype, 3e-2)
    if found.is_cuda and dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        relative = 4e-3
    if not bool(torch.isfinite(found).all()):
        return float("inf"), relative
    return float((found - known).abs().max()), relative * max(1.0, float(known.abs().max()))


def odd_layers(config: Any, seen: list[int | None]) -> str | None:
    """Return the reason why a model cannot be computed over tries, or None where its layers' calls show none.

    A short probe cannot show the effect of a long window, so the window that each layer asked for (`seen`) is compared
    with the configuration.
    """
    count = getattr(config, "num_hidden_layers", None)
    if count is not None and len(seen) != count:
        return f"{len(seen)} of its {count} layers use an attention that can be replaced"
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    if getattr(config, "attention_chunk_size", None) is not None:
        return "its attention is cut into chunks"
    for index, asked in enumerate(seen):
        kind = kinds[index] if kinds else ("sliding_attention" if window else "full_attention")
        if kind not in ("sliding_attention", "full_attention"):
            return f"layer {index} is of kind {kind!r}"
        if kind == "sliding_attention" and asked != window:
            return f"layer {index} has a window of {window}, but its attention asks for {asked}"
        if kind == "full_attention" and asked is not None and kinds:
            return f"layer {index} sees everything, but its attention asks for a window of {asked}"
    return None


def depends_on_length(config: Any) -> bool:
    """Return whether a position's encoding changes with the longest sequence of a call."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [rope, *[value for value in rope.values() if isinstance(value, dict)]]
    return any(item.get("rope_type", item.get("type")) in LENGTH_DEPENDENT for item in nested)


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
