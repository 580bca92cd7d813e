"""Attention over slots: one packed batch holds decoding rows and pieces of prompts, each with its own history.

The model sees a single row of packed tokens with their positions. Keys and values are written to a slot at the index
of their position and read from there. Sizes are rounded so that no sum depends on what else is in the batch: on the
CPU, the products that torch's libraries compute for 1 to 3 rows round differently from those of 4 rows and more, and
vector code treats the end of an array that is no multiple of the vector differently.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from offline_agent.errors import PolicyError

NAME = "offline_agent_slots"
LENGTH_STEP = 64
ROW_STEP = 16
QUERY_STEP = 4
BLOCK = 16


def round_up(size: int, step: int) -> int:
    """Return the smallest multiple of `step` that is not below `size`."""
    return -(-size // step) * step


class SlotCache:
    """Keys and values of the sequences being worked on, position p at index p.

    The memory starts as zeros, so what lies beyond a sequence's end is always finite and, masked, adds exactly 0.

    Attributes:
        data: [layers, 2, slots, kv_heads, capacity + 1, head_dim]; the last index takes writes nobody reads.
    """

    def __init__(
        self, slots: int, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.slots = slots
        self.capacity = 4 * LENGTH_STEP
        self.data = torch.zeros(layers, 2, slots, kv_heads, self.capacity + 1, head_dim, dtype=dtype, device=device)

    def reserve(self, length: int) -> None:
        """Make room for sequences of `length` ids.

        Raises:
            PolicyError: There is not enough memory.
        """
        if length <= self.capacity:
            return
        capacity = round_up(max(length, min(2 * self.capacity, self.capacity + 1024)), LENGTH_STEP)
        layers, two, slots, heads, _, width = self.data.shape
        try:
            data = self.data.new_zeros(layers, two, slots, heads, capacity + 1, width)
        except RuntimeError as error:
            raise PolicyError(
                f"no memory for {slots} slots of {capacity} ids: lower policy.slots or policy.max_context ({error})"
            ) from error
        data[..., : self.capacity, :] = self.data[..., : self.capacity, :]
        self.data, self.capacity = data, capacity

    def slot(self, slot: int) -> torch.Tensor:
        """Return the view [layers, 2, kv_heads, capacity + 1, head_dim] of one slot."""
        return self.data[:, :, slot]

    def read(self, slot: int, start: int, end: int) -> torch.Tensor:
        """Return a copy [layers, 2, kv_heads, end - start, head_dim]."""
        return self.data[:, :, slot, :, start:end].clone()


@dataclass(slots=True)
class Piece:
    """Part of a sequence in the packed batch: tokens `first … first + count` go to `slot` from position `start` on."""

    slot: int
    first: int
    start: int
    count: int


@dataclass
class Plan:
    """Where the tokens of one packed batch belong.

    Attributes:
        cache: The slots.
        rows: The first `rows` tokens are one decoding step of slots 0 … rows-1.
        positions: int [rows], position of each; 0 for a slot that is not decoding.
        write_at: int [rows], the same with the cache's last index for a slot that is not decoding.
        pieces: The tokens after them.
    """

    cache: SlotCache
    rows: int
    positions: torch.Tensor
    write_at: torch.Tensor
    pieces: list[Piece]
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    _row_index: Any = None
    _masks: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._row_index = torch.arange(self.rows, device=self.positions.device)
        reach = self.positions.tolist()
        for start in range(0, self.rows, BLOCK):  # rows far from the longest need not read as far
            end = min(start + BLOCK, self.rows)
            self.blocks.append((start, end, round_up(max(reach[start:end]) + 1, LENGTH_STEP)))

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """Write keys and values to the slots and return the attention's output.

        Args:
            layer: Index of the layer.
            query: [1, heads, tokens, head_dim].
            key, value: [1, kv_heads, tokens, head_dim].
            scale: Of the scores.
            window: A query sees this many positions, its own included; None = all before it.

        Returns:
            [1, tokens, heads, head_dim].
        """
        keys, values = self.cache.data[layer, 0], self.cache.data[layer, 1]
        heads, tokens, width = query.shape[1:]
        kv_heads = key.shape[1]
        groups = heads // kv_heads
        out = query.new_zeros(tokens, heads, width)
        if self.rows:
            n = self.rows
            keys[self._row_index, :, self.write_at] = key[0, :, :n].transpose(0, 1)
            values[self._row_index, :, self.write_at] = value[0, :, :n].transpose(0, 1)
            rows = query[0, :, :n].transpose(0, 1).reshape(n, kv_heads, groups, width)
            rows = _pad_queries(rows, groups)
            for start, end, length in self.blocks:
                attended = scaled_dot_product_attention(
                    rows[start:end],
                    keys[start:end, :, :length],
                    values[start:end, :, :length],
                    attn_mask=self._row_mask(start, end, length, window, query),
                    scale=scale,
                )
                out[start:end] = attended[:, :, :groups].reshape(end - start, heads, width)
        for piece in self.pieces:
            first, last = piece.first, piece.first + piece.count
            until = piece.start + piece.count
            keys[piece.slot, :, piece.start : until] = key[0, :, first:last]
            values[piece.slot, :, piece.start : until] = value[0, :, first:last]
            length = round_up(until, LENGTH_STEP)
            asked = query[0, :, first:last].reshape(1, kv_heads, groups * piece.count, width)
            attended = scaled_dot_product_attention(
                _pad_queries(asked, groups * piece.count),
                keys[None, piece.slot, :, :length],
                values[None, piece.slot, :, :length],
                attn_mask=self._piece_mask(piece, groups, length, window, query),
                scale=scale,
            )[0, :, : groups * piece.count]
            out[first:last] = attended.reshape(heads, piece.count, width).transpose(0, 1)
        return out[None]

    def _row_mask(self, start: int, end: int, length: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
        mask = self._masks.get((start, window))
        if mask is None:
            mask = _mask(self.positions[start:end], length, window, like)[:, None, None]
            self._masks[start, window] = mask
        return mask

    def _piece_mask(
        self, piece: Piece, groups: int, length: int, window: int | None, like: torch.Tensor
    ) -> torch.Tensor:
        mask = self._masks.get((-piece.first - 1, groups, window))
        if mask is None:
            positions = torch.arange(piece.start, piece.start + piece.count, device=like.device).repeat(groups)
            extra = -positions.numel() % QUERY_STEP
            positions = torch.cat((positions, positions[-1:].expand(extra))) if extra else positions
            mask = _mask(positions, length, window, like)[None, None]
            self._masks[-piece.first - 1, groups, window] = mask
        return mask


def _pad_queries(query: torch.Tensor, count: int) -> torch.Tensor:
    """Return queries [..., count, width] with copies of the last one up to a multiple of `QUERY_STEP`."""
    extra = -count % QUERY_STEP
    if not extra:
        return query
    return torch.cat((query, query[..., -1:, :].expand(*query.shape[:-2], extra, query.shape[-1])), dim=-2)


def _mask(positions: torch.Tensor, length: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    """Return [n, length]: 0 where position i may look, else -inf."""
    index = torch.arange(length, device=positions.device)
    hidden = index[None] > positions[:, None]
    if window is not None:
        hidden |= index[None] <= positions[:, None] - window
    return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, float("-inf"))


def slot_attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **options: Any
) -> tuple[torch.Tensor, None]:
    """Stand in for a transformers attention function; the plan comes with the call of the model.

    Raises:
        PolicyError: The model wants something that is not plain causal attention.
    """
    for option in ("softcap", "s_aux"):
        if options.get(option) is not None:
            raise PolicyError(f"the hf policy cannot run this model: its attention uses {option!r}; use policy=server")
    plan: Plan = options["slot_plan"]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return plan.attend(module.layer_idx, query, key, value, scale, options.get("sliding_window")), None
