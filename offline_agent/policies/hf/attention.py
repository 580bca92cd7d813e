"""Attention over slots: one packed batch of decoding rows and pieces of prompts, each with its own history.

The model sees a single row of packed tokens with their positions. Keys and values are written to a slot at the index
of their position and read from there.

On a CPU the result for a token is a function of its history alone, bit for bit: it does not matter whether the token is
decoded or prefilled, in which batch, or up to which padded length. The measures for this were found by experiment (MKL,
AVX-512 and AVX2):
- products of 1 to 3 rows round differently from those of 4 rows and more, so no product has fewer than 4 rows: a
  decoding slot computes 4 tokens at once, drafted ids included (`requests.DraftTable`);
- sums over more than 192 terms are split at places that depend on their number, so the sum over positions is computed
  in runs of 128, first to last, and shorter runs are filled with exact zeros;
- vector code rounds differently at the end of an array that is no multiple of the vector, so lengths are padded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from offline_agent.policies.hf.architecture import Unpackable, check_call
from offline_agent.policies.hf.kv_cache import QUERY_STEP, RUN, SlotCache, round_up

NAME = "offline_agent_slots"
LENGTH_STEP = 32
ROW_STEP = 16
BLOCK = 4  # decoding slots with a common padded length
MOST_PADDING = 512  # positions of padding that are cheaper than one more product
MOST_SCORES = 1 << 23  # elements of one matrix of attention scores


@dataclass(slots=True)
class Piece:
    """Part of a sequence in the packed batch: tokens `first … first + count` belong to `slot` from position `start`."""

    slot: int
    first: int
    start: int
    count: int


@dataclass(slots=True)
class DecodingRow:
    """Tokens of a decoding slot in the packed batch: `count` of them, at most the shape's span, from `start` on."""

    slot: int
    start: int
    count: int


class SlotPlan:
    """Assignment of a packed batch's tokens to slots and positions.

    Args:
        cache: The slots.
        rows: Decoding slots; their tokens come first, in this order.
        pieces: Pieces of prompts; their tokens follow.

    Attributes:
        seen: The window that each call of the attention asked for.
    """

    def __init__(self, cache: SlotCache, rows: list[DecodingRow], pieces: list[Piece]) -> None:
        self.cache = cache
        self.pieces = pieces
        self.seen: list[int | None] = []
        self.rows = max((row.slot for row in rows), default=-1) + 1
        self.decoding = sum(row.count for row in rows)
        self._masks: dict[Any, Any] = {}
        span, device = cache.shape.span, cache.data.device
        reach, positions = [1] * self.rows, [0] * (self.rows * span)
        places: list[int] = []
        for row in rows:
            first = row.slot * span
            reach[row.slot] = row.start + row.count
            positions[first : first + row.count] = range(row.start, row.start + row.count)
            places.extend(range(first, first + row.count))
        self._positions = torch.tensor(positions, dtype=torch.long, device=device).view(self.rows, span)
        self._places = torch.tensor(places, dtype=torch.long, device=device)
        self._slots = self._places // span
        self._at = self._positions.view(-1)[self._places]
        self._blocks = _blocks(reach)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """Write keys and values to the slots and return the attention's output.

        Args:
            layer: Index of the layer.
            query: [1, heads, tokens, width].
            key, value: [1, kv_heads, tokens, width].
            scale: Of the scores.
            window: A query sees this many positions, its own included; None = all before it.

        Returns:
            [1, tokens, heads, width].
        """
        keys, values = self.cache.data[layer, 0], self.cache.data[layer, 1]
        query = query[0].transpose(0, 1) * scale
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
        n = self.decoding
        if n:
            keys[self._slots, :, self._at] = key[0, :, :n].transpose(0, 1)
            values[self._slots, :, self._at] = value[0, :, :n].transpose(0, 1)
            out[:n] = self._decode(query[:n], keys, values, window)
        for piece in self.pieces:
            first, last = piece.first, piece.first + piece.count
            until = piece.start + piece.count
            keys[piece.slot, :, piece.start : until] = key[0, :, first:last]
            values[piece.slot, :, piece.start : until] = value[0, :, first:last]
            length = round_up(until, LENGTH_STEP)
            known = keys[None, piece.slot, :, :length], values[None, piece.slot, :, :length]
            most = max(QUERY_STEP, MOST_SCORES // (length * query.shape[1]) // QUERY_STEP * QUERY_STEP)
            for at in range(first, last, most):
                end = min(at + most, last)
                mask = self._piece_mask(piece.start + at - first, end - at, length, window, query)
                asked = query[at:end]
                if mask.shape[-2] > end - at:
                    asked = torch.cat((asked, asked[-1:].expand(mask.shape[-2] - (end - at), -1, -1)))
                out[at:end] = self._attend(asked[None], *known, mask)[0, : end - at]
        return out[None]

    def _decode(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """Return [decoding, heads, width] for the tokens of decoding slots."""
        span, (_, heads, width) = self.cache.shape.span, query.shape
        asked = query.new_zeros(self.rows * span, heads, width)
        asked[self._places] = query
        asked = asked.view(self.rows, span, heads, width)
        out = torch.empty_like(asked)
        for start, end, length in self._blocks:
            mask = self._row_mask(start, end, length, window, query)
            out[start:end] = self._attend(
                asked[start:end], keys[start:end, :, :length], values[start:end, :, :length], mask
            )
        return out.view(self.rows * span, heads, width)[self._places]

    def _attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Return softmax(query · keysᵀ + mask) · values for queries that are scaled already.

        Args:
            query: [n, count, heads, width], count a multiple of `QUERY_STEP` where the shape is exact.
            keys, values: [n, kv_heads, length, width].
            mask: [n, 1, 1, count, length].

        Returns:
            [n, count, heads, width].
        """
        shape, (n, count, heads, width), length = self.cache.shape, query.shape, keys.shape[2]
        many, rows = n * shape.kv_heads, shape.group * count
        apart = query.view(n, count, shape.kv_heads, shape.group, width).permute(0, 2, 3, 1, 4)
        if not shape.exact:
            joint = mask.expand(n, 1, shape.group, count, length).reshape(n, 1, rows, length)
            apart = apart.reshape(n, shape.kv_heads, rows, width)
            out = scaled_dot_product_attention(apart, keys, values, attn_mask=joint, scale=1.0)
        else:
            keys, values = keys.reshape(many, length, width), values.reshape(many, length, width)
            scores = torch.bmm(apart.reshape(many, rows, width), keys.transpose(1, 2))
            scores.view(n, shape.kv_heads, shape.group, count, length).add_(mask)
            weights = torch.softmax(scores, dim=-1)
            out = torch.bmm(weights[..., :RUN], values[:, :RUN])
            for start in range(RUN, length, RUN):
                out.baddbmm_(weights[..., start : start + RUN], values[:, start : start + RUN])
        out = out.view(n, shape.kv_heads, shape.group, count, width).permute(0, 3, 1, 2, 4)
        return out.reshape(n, count, heads, width)

    def _row_mask(self, start: int, end: int, length: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
        mask = self._masks.get((start, window))
        if mask is None:
            mask = self._masks[start, window] = _mask(self._positions[start:end], length, window, like)
        return mask

    def _piece_mask(self, start: int, count: int, length: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
        """Return the mask of `count` positions from `start` on, the last one repeated up to a multiple."""
        mask = self._masks.get((start, count, length, window))
        if mask is None:
            positions = torch.arange(start, start + round_up(count, QUERY_STEP), device=like.device)
            mask = _mask(positions.clamp_(max=start + count - 1)[None], length, window, like)
            self._masks[start, count, length, window] = mask
        return mask


def _blocks(reach: list[int]) -> list[tuple[int, int, int]]:
    """Return runs of neighbouring slots (start, end, padded length), so that short histories are padded less."""
    blocks: list[tuple[int, int, int]] = []
    for start in range(0, len(reach), BLOCK):
        end = min(start + BLOCK, len(reach))
        length = round_up(max(reach[start:end]), LENGTH_STEP)
        if blocks:
            first, _, before = blocks[-1]
            shorter = (end - start) if length < before else (start - first)
            if shorter * abs(before - length) <= MOST_PADDING:
                blocks[-1] = (first, end, max(before, length))
                continue
        blocks.append((start, end, length))
    return blocks


def _mask(positions: torch.Tensor, length: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    """Return the mask [n, 1, 1, count, length] of positions [n, count]: 0 where a position is visible, else -inf."""
    index = torch.arange(length, device=positions.device)
    hidden = index > positions[..., None]
    if window is not None:
        hidden |= index <= positions[..., None] - window
    mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, float("-inf"))
    return mask[:, None, None]


def slot_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention over slots; called by transformers in place of its own function, with the plan as an option.

    Raises:
        Unpackable: The model needs something other than plain causal attention.
    """
    plan: SlotPlan | None = options.pop("slot_plan", None)
    if plan is None:
        raise Unpackable("the model does not hand its keyword arguments on to its attention")
    check_call(module, attention_mask, options)
    plan.seen.append(sliding_window)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return plan.attend(module.layer_idx, query, key, value, scale, sliding_window), None
