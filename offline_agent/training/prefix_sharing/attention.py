"""Attention over a packed trie, registered with transformers, and the switch that turns it on for one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from offline_agent.policies.hf.architecture import Unpackable, check_call
from offline_agent.policies.hf.model_classes import AttentionInterface
from offline_agent.training.prefix_sharing.layout import Block, blocks, flex_mask, visible
from offline_agent.training.prefix_sharing.trie import Pack

NAME = "offline_agent_shared_prefixes"
KEYWORD = "shared_prefixes"
FLOAT_MASK = 1 << 22  # elements up to which a mask is kept as numbers: SDPA would convert it at every call


@dataclass
class AttentionPlan:
    """Inputs of the attention of one call; passed through the model as a keyword argument.

    Attributes:
        pack: The trie.
        way: blocks = SDPA block by block, flex = FlexAttention.
        seen: The window that each attention asked for, noted where there is a list.
    """

    pack: Pack
    way: str
    seen: list[int | None] | None = None


@dataclass
class _BlockLayout:
    """Sizes by which packed tokens are split, and each block's pieces and mask."""

    query_sizes: list[int]
    key_sizes: list[int]
    blocks: list[tuple[Block, list[int], torch.Tensor | None]] = field(default_factory=list)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Stand in for one of transformers' attention functions; one packed row [1, heads, N, width] in and out.

    Raises:
        Unpackable: The model asks for what is not plain causal attention over the pack.
    """
    # taken out, so that what is left is what the model itself asks for: anything unknown there is refused
    plan: AttentionPlan | None = options.pop(KEYWORD, None)
    _check(module, plan, query, key, attention_mask, options)
    assert plan is not None
    if plan.seen is not None:
        plan.seen.append(sliding_window)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if key.dtype != query.dtype or value.dtype != query.dtype:
        query, key = query.to(value.dtype), key.to(value.dtype)  # float32 rotary angles under autocast
    if query.shape[1] % key.shape[1]:
        raise Unpackable(f"{query.shape[1]} query heads are no multiple of {key.shape[1]} key heads")
    if plan.way == "flex" and not dropout:  # FlexAttention has none
        out = _flex(plan.pack, query, key, value, scale, sliding_window)
    else:
        out = _by_blocks(plan.pack, query, key, value, scale, dropout, sliding_window)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)


def _check(
    module: Any,
    plan: AttentionPlan | None,
    query: torch.Tensor,
    key: torch.Tensor,
    attention_mask: Any,
    options: dict[str, Any],
) -> None:
    if plan is None:
        raise Unpackable("the model does not hand its keyword arguments on to its attention")
    check_call(module, attention_mask, options)
    # a cache or padding would make other lengths, and positions in the row would no longer be the trie's
    if query.shape[0] != 1 or query.shape[2] != plan.pack.tokens or key.shape[2] != plan.pack.tokens:
        raise Unpackable(f"its attention sees {tuple(key.shape)} for {plan.pack.tokens} packed tokens")


def _by_blocks(
    pack: Pack,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    dropout: float,
    window: int | None,
) -> torch.Tensor:
    layout = _layout(pack, window, query)
    # split, not sliced: the backward pass of all pieces together is one concatenation
    queries, keys, values = (
        query.split(layout.query_sizes, 2), key.split(layout.key_sizes, 2), value.split(layout.key_sizes, 2)
    )  # fmt: skip
    out = []
    for part, (block, pieces, mask) in zip(queries, layout.blocks, strict=True):
        k, v = _gather(keys, pieces), _gather(values, pieces)
        out.append(
            scaled_dot_product_attention(
                part, k, v, attn_mask=mask, is_causal=block.chain, dropout_p=dropout, scale=scale,
                enable_gqa=part.shape[1] != k.shape[1],
            )
        )  # fmt: skip
    return torch.cat(out, 2)


def _gather(pieces: tuple[torch.Tensor, ...], which: list[int]) -> torch.Tensor:
    return pieces[which[0]] if len(which) == 1 else torch.cat([pieces[i] for i in which], 2)


def _layout(pack: Pack, window: int | None, like: torch.Tensor) -> _BlockLayout:
    # per window and format, not per layer: all layers of a kind share one mask
    name = ("blocks", window, like.dtype)
    if name not in pack.layouts:
        pack.layouts[name] = _make_layout(pack, window, like)
    layout: _BlockLayout = pack.layouts[name]
    return layout


def _make_layout(pack: Pack, window: int | None, like: torch.Tensor) -> _BlockLayout:
    # cut at every edge that any block has, so that the keys of each are whole pieces
    cut = blocks(pack, window)
    edges = sorted({edge for block in cut for run in block.runs for edge in run} | {block.start for block in cut})
    place = {edge: index for index, edge in enumerate(edges)}
    layout = _BlockLayout([block.end - block.start for block in cut], np.diff(edges).tolist())
    for block in cut:
        # in the order of the runs, ancestors first: the mask's columns have it, too
        pieces = [piece for start, stop in block.runs for piece in range(place[start], place[stop])]
        layout.blocks.append((block, pieces, None if block.chain else _mask(pack, block, window, like)))
    return layout


def _mask(pack: Pack, block: Block, window: int | None, like: torch.Tensor) -> torch.Tensor:
    keys = np.concatenate([np.arange(start, stop) for start, stop in block.runs])
    seen = torch.from_numpy(visible(pack, np.arange(block.start, block.end), keys, window)).to(like.device)
    # large ones stay booleans: as numbers they would take several times the memory
    if seen.numel() > FLOAT_MASK:
        return seen
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(~seen, float("-inf"))


@cache
def _compiled_flex() -> Callable[..., torch.Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)  # type: ignore[no-any-return]


def _flex(
    pack: Pack, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    mask = pack.layouts.get(("flex", window))
    if mask is None:
        mask = pack.layouts["flex", window] = flex_mask(pack, window)
    if query.device.type == "cpu":  # no backward pass, and nothing to gain from compiling: a means to test the mask
        from torch.nn.attention.flex_attention import flex_attention as run
    else:
        run = _compiled_flex()
    # the mask is of whole blocks; the tokens that fill the last one see themselves alone
    more = mask.seq_lengths[0] - pack.tokens
    if more:
        query, key, value = (torch.nn.functional.pad(each, (0, 0, 0, more)) for each in (query, key, value))
    out = run(query, key, value, block_mask=mask, scale=scale, enable_gqa=query.shape[1] != key.shape[1])
    return out[:, :, : pack.tokens]


def _configs(model: Any) -> list[Any]:
    """Return every configuration that a module of the model reads its attention's name from, each once."""
    found: dict[int, Any] = {}
    for module in model.modules():
        # modules may hold sub-configurations of their own (vision, text): each is switched, by identity
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            found[id(config)] = config
    return list(found.values())


@contextmanager
def switched(model: Any) -> Iterator[None]:
    """Compute the model's attention over packs inside the block, and as before after it.

    Layers under gradient checkpointing are computed again in the backward pass, when the block is long over: they
    take the switch along.
    """
    configs = _configs(model)
    wrapped = []
    for module in model.modules():
        # set by transformers on modules whose layers are computed again in the backward pass
        run = module.__dict__.get("_gradient_checkpointing_func")
        if run is not None:
            module.__dict__["_gradient_checkpointing_func"] = _taking_along(run, configs)
            wrapped.append((module, run))
    try:
        with _named(configs):
            yield
    finally:  # also where the model raised: it must attend as before in generation
        for module, run in wrapped:
            module.__dict__["_gradient_checkpointing_func"] = run


def _taking_along(run: Callable[..., Any], configs: list[Any]) -> Callable[..., Any]:
    def checkpointed(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def again(*inner: Any, **named: Any) -> Any:
            with _named(configs):
                return function(*inner, **named)

        return run(again, *args, **options)

    return checkpointed


@contextmanager
def _named(configs: list[Any]) -> Iterator[None]:
    # not by the public property, which changes sub-configurations too: each has its own name to go back to
    before = [config._attn_implementation_internal for config in configs]
    for config in configs:
        config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation_internal = name
