"""Facts of a model's attention that packed rows rest on; the check of slots and that of prefix sharing use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

LAYERS = ("full_attention", "sliding_attention")
ANGLES = ("default", "linear", "llama3", "proportional", "yarn")  # of a position alone
LENGTH_ANGLES = ("dynamic", "longrope")  # of the longest position of a call as well
LIMITS = ("sliding_window", "original_max_position_embeddings")
LOWERED = 8  # positions: below the length of a probe
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
HARMLESS = {"position_ids", "cache_position", "use_cache", "is_causal", "output_attentions", "output_hidden_states",
            "return_dict", "output_router_logits", "num_items_in_batch", "layer_idx"}  # fmt: skip


class Unpackable(Exception):
    """The model's attention wants something that cannot be computed over packed rows."""


def check_call(module: Any, attention_mask: Any, options: dict[str, Any]) -> None:
    """Check that a call of an attention function asks for plain causal attention.

    Args:
        module: The attention layer.
        attention_mask: Its mask.
        options: Its keyword arguments, without those that the caller understands.

    Raises:
        Unpackable: It asks for more.
    """
    odd = sorted(name for name, value in options.items() if value is not None and name not in HARMLESS)
    if odd:
        raise Unpackable(f"its attention uses {', '.join(odd)}")
    if not getattr(module, "is_causal", True) or options.get("is_causal") is False:
        raise Unpackable("its attention is not causal")
    if attention_mask is not None:
        raise Unpackable("it makes an attention mask of its own")


def check_layers(config: Any, seen: list[int | None]) -> None:
    """Check that all layers of a model are attention over all positions or over a window, and its angles are known.

    Args:
        config: The configuration of its text part.
        seen: The window that each call of the attention function asked for in one forward pass, in order.

    Raises:
        Unpackable: They are not.
    """
    kinds = getattr(config, "layer_types", None)
    for kind in kinds or ():
        if kind not in LAYERS:
            raise Unpackable(f"it has layers of kind {kind!r}")
    if getattr(config, "attention_chunk_size", None) is not None:
        raise Unpackable("its attention is cut into chunks")
    odd = [kind for kind, _ in _angles(config) if kind not in (*ANGLES, *LENGTH_ANGLES)]
    if odd:
        raise Unpackable(f"its rotary angles are of kind {odd[0]!r}")
    if len(seen) != config.num_hidden_layers:
        raise Unpackable(f"{len(seen)} of its {config.num_hidden_layers} layers use an attention that can be replaced")
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    for index, asked in enumerate(seen):
        kind = kinds[index] if kinds else ("sliding_attention" if window else "full_attention")
        if kind == "sliding_attention" and asked != window:
            raise Unpackable(f"layer {index} has a window, but its attention asks for {'another' if asked else 'none'}")
        if kind == "full_attention" and asked is not None and kinds:
            raise Unpackable(f"layer {index} sees everything, but its attention asks for a window")


def length_limit(config: Any) -> int | None:
    """Return the longest sequence before rotary angles change with a call's longest; None = they never do."""
    limits = []
    for kind, rope in _angles(config):
        known = rope.get("original_max_position_embeddings") if kind == "longrope" else None
        if kind in LENGTH_ANGLES:
            limits.append(known or config.max_position_embeddings)
    return min(limits, default=None)


def _angles(config: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return kind and parameters of the rotary angles, of each kind of layer where they differ."""
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    return [(each.get("rope_type") or each.get("type") or "default", each) for each in nested]


@contextmanager
def lowered(model: Any) -> Iterator[None]:
    """Lower the lengths at which the model's attention changes inside the block, so that a short probe passes them.

    They are no part of the weights. Limits of length-dependent angles stay.
    """
    owners: dict[int, dict[str, Any]] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        parts = [vars(module)]
        if hasattr(config, "_attn_implementation"):
            parts += [vars(config), *[rope for kind, rope in _angles(config) if kind not in LENGTH_ANGLES]]
        owners.update({id(part): part for part in parts})
    found = [(owner, name, owner.get(name)) for owner in owners.values() for name in LIMITS]
    known = [(owner, name, old) for owner, name, old in found if isinstance(old, int | float) and old > LOWERED]
    try:
        for owner, name, _ in known:
            owner[name] = LOWERED
        yield
    finally:
        for owner, name, old in known:
            owner[name] = old


def distance(model: Any, found: torch.Tensor, known: torch.Tensor) -> tuple[float, float]:
    """Return the largest difference of log-probabilities and the largest allowed: rounding of the model's format."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    relative = TOLERANCE.get(dtype, 3e-2)
    if found.is_cuda and dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        relative = 4e-3
    if not bool(torch.isfinite(found).all()):
        return float("inf"), relative
    return float((found - known).abs().max()), relative * max(1.0, float(known.abs().max()))
