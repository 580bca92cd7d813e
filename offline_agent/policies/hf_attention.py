"""Attention over slots: one packed batch holds decoding rows and pieces of prompts, each with its own history.

The model sees a single row of packed tokens with their positions. Keys and values are written to a slot at the index
of their position and read from there.

On a CPU the result for a token is a function of its history alone, bit for bit: whether it is decoded or filled, in
which batch and up to which padded length. What that takes, found by trying (MKL, AVX-512 and AVX2):
- products of 1 to 3 rows round differently from those of 4 rows and more, so no product has fewer than 4 rows. Where
  fewer query heads share a key-value head, the heads of a slot are joined in one product with a block-diagonal query
  (the zeros change nothing), which is also faster than many small products;
- sums over more than 192 terms are split at places that depend on their number, so the sum over positions is done in
  runs of 128, first to last, and shorter ones end in exact zeros;
- vector code computes the end of an array that is no multiple of the vector differently, so lengths are padded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from offline_agent.errors import PolicyError

NAME = "offline_agent_slots"
LENGTH_STEP = 32
RUN = 128  # positions summed in one product
ROW_STEP = 16
QUERY_STEP = 4
BLOCK = 4  # decoding slots that share a padded length
MOST_PADDING = 512  # positions of padding that cost less than another product
MOST_SCORES = 1 << 23  # elements of one matrix of scores


def round_up(size: int, step: int) -> int:
    """Return the smallest multiple of `step` that is not below `size`."""
    return -(-size // step) * step


@dataclass(frozen=True)
class Shape:
    """Of a model's keys and values.

    Attributes:
        layers, heads, kv_heads, width: The model's; `width` of one head.
        exact: Use the products that give the same bits in any batch (slower on an accelerator).
    """

    layers: int
    heads: int
    kv_heads: int
    width: int
    exact: bool

    @property
    def group(self) -> int:
        """Query heads that share a key-value head."""
        return self.heads // self.kv_heads

    @property
    def joined(self) -> int:
        """Key-value heads that are kept side by side and multiplied as one."""
        for count in range(1, self.kv_heads + 1):
            if self.kv_heads % count == 0 and count * self.group >= QUERY_STEP and count * self.width <= RUN:
                return count if self.exact else 1
        return 1


class SlotCache:
    """Keys and values of the sequences being worked on, position p at index p.

    The memory starts as zeros, so what lies beyond a sequence's end is always finite and, masked, adds exactly 0.

    Attributes:
        data: [layers, 2, slots, kv_heads / joined, capacity + 1, joined * width]; the last index of the positions takes
            writes nobody reads.
    """

    def __init__(self, slots: int, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        self.slots = slots
        self.shape = shape
        self.capacity = 3 * RUN
        heads, width = shape.kv_heads // shape.joined, shape.joined * shape.width
        size = (shape.layers, 2, slots, heads, self.capacity + 1, width)
        self.data = torch.zeros(size, dtype=dtype, device=device)

    def reserve(self, length: int) -> None:
        """Make room for sequences of `length` ids.

        Raises:
            PolicyError: There is not enough memory.
        """
        if length <= self.capacity:
            return
        capacity = round_up(max(length, min(2 * self.capacity, self.capacity + 1024)), RUN)
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
        """Return the view [layers, 2, heads, capacity + 1, width] of one slot."""
        return self.data[:, :, slot]

    def read(self, slot: int, start: int, end: int) -> torch.Tensor:
        """Return a copy [layers, 2, heads, end - start, width]."""
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
            length = round_up(max(reach[start:end]) + 1, LENGTH_STEP)
            if self.blocks:
                first, _, before = self.blocks[-1]
                shorter = (end - start) if length < before else (start - first)
                if shorter * abs(before - length) <= MOST_PADDING:
                    self.blocks[-1] = (first, end, max(before, length))
                    continue
            self.blocks.append((start, end, length))

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
        _, heads, tokens, width = query.shape
        query, key, value = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
        side = keys.shape[1], keys.shape[3]  # as they lie in the cache
        key, value = key.reshape(tokens, *side), value.reshape(tokens, *side)
        query = query * scale
        out = query.new_zeros(tokens, heads, width)
        if self.rows:
            keys[self._row_index, :, self.write_at] = key[: self.rows]
            values[self._row_index, :, self.write_at] = value[: self.rows]
            asked = self._spread(query[: self.rows])
            for start, end, length in self.blocks:
                attended = self._attend(
                    asked[start:end],
                    keys[start:end, :, :length],
                    values[start:end, :, :length],
                    self._row_mask(start, end, length, window, query),
                )
                out[start:end] = self._gather(attended)
        for piece in self.pieces:
            first, last = piece.first, piece.first + piece.count
            until = piece.start + piece.count
            keys[piece.slot, :, piece.start : until] = key[first:last].transpose(0, 1)
            values[piece.slot, :, piece.start : until] = value[first:last].transpose(0, 1)
            length = round_up(until, LENGTH_STEP)
            known = self._heads(keys[piece.slot, :, :length]), self._heads(values[piece.slot, :, :length])
            most = max(QUERY_STEP, MOST_SCORES // (length * heads) // QUERY_STEP * QUERY_STEP)
            for at in range(first, last, most):
                end = min(at + most, last)
                mask = self._piece_mask(piece.start + at - first, end - at, length, window, query)
                out[at:end] = self._fill(query[at:end], *known, mask)
        return out[None]

    def _spread(self, query: torch.Tensor) -> torch.Tensor:
        """Return queries [n, heads, width] as [n, heads of the cache, rows, width of the cache], rows ≥ 4."""
        shape = self.cache.shape
        joined, group, n = shape.joined, shape.group, query.shape[0]
        query = query.reshape(n, -1, joined, group, 1, shape.width)
        if joined > 1:
            query = query * torch.eye(joined, dtype=query.dtype, device=query.device).view(joined, 1, joined, 1)
        return _pad_queries(query.reshape(n, -1, joined * group, joined * shape.width))

    def _gather(self, attended: torch.Tensor) -> torch.Tensor:
        """Undo `_spread`: return [n, heads, width], each head's own part."""
        shape = self.cache.shape
        joined, group, n = shape.joined, shape.group, attended.shape[0]
        attended = attended[:, :, : joined * group].reshape(n, -1, joined, group, joined, shape.width)
        if joined > 1:
            attended = attended.diagonal(dim1=2, dim2=4).permute(0, 1, 4, 2, 3)
        return attended.reshape(n, shape.heads, shape.width)

    def _heads(self, known: torch.Tensor) -> torch.Tensor:
        """Return one slot's keys or values [heads of the cache, length, its width] as [kv_heads, length, width]."""
        shape, length = self.cache.shape, known.shape[1]
        apart = known.reshape(-1, length, shape.joined, shape.width).transpose(1, 2)
        return apart.reshape(shape.kv_heads, length, shape.width)

    def _fill(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return [count, heads, width] for consecutive queries of one slot."""
        shape, count = self.cache.shape, query.shape[0]
        asked = query.transpose(0, 1).reshape(1, shape.kv_heads, shape.group * count, shape.width)
        attended = self._attend(_pad_queries(asked), keys[None], values[None], mask)
        attended = attended[0, :, : shape.group * count].reshape(shape.heads, count, shape.width)
        return attended.transpose(0, 1)

    def _attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Return softmax(query · keysᵀ + mask) · values, [n, h, rows, w], for queries that are scaled already."""
        if not self.cache.shape.exact:
            return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=1.0)
        n, heads, rows, width = query.shape
        length = keys.shape[2]
        keys, values = keys.reshape(n * heads, length, width), values.reshape(n * heads, length, width)
        scores = torch.bmm(query.reshape(n * heads, rows, width), keys.transpose(1, 2)).view(n, heads, rows, length)
        weights = torch.softmax(scores.add_(mask), dim=-1).view(n * heads, rows, length)
        out = torch.bmm(weights[..., :RUN], values[:, :RUN])
        for start in range(RUN, length, RUN):
            out.baddbmm_(weights[..., start : start + RUN], values[:, start : start + RUN])
        return out.view(n, heads, rows, width)

    def _row_mask(self, start: int, end: int, length: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
        mask = self._masks.get((start, window))
        if mask is None:
            mask = _mask(self.positions[start:end], length, window, like)[:, None, None]
            self._masks[start, window] = mask
        return mask

    def _piece_mask(self, start: int, count: int, length: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
        """Return [1, 1, rows, length] for the queries of `count` positions from `start` on, padded."""
        mask = self._masks.get((start, count, length, window))
        if mask is None:
            group = self.cache.shape.group
            positions = torch.arange(start, start + count, device=like.device).repeat(group)
            extra = -positions.numel() % QUERY_STEP
            positions = torch.cat((positions, positions[-1:].expand(extra))) if extra else positions
            mask = _mask(positions, length, window, like)[None, None]
            self._masks[start, count, length, window] = mask
        return mask


def _pad_queries(query: torch.Tensor) -> torch.Tensor:
    """Return queries [..., count, width] with copies of the last one up to a multiple of `QUERY_STEP`."""
    extra = -query.shape[-2] % QUERY_STEP
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
