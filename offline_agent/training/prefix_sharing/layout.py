"""The attention pattern of packed sequences, cut into blocks that a fast attention kernel accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from offline_agent.training.prefix_sharing.trie import Ids, Pack

FLEX_BLOCK = 128
CALL_COST = 40_000  # of one more kernel call, in query-key products
COPY_COST = 60  # of one more key that is copied for a call, in the same unit
MERGED = 64  # most runs in one block
WINDOW_PIECE = 512  # longest run of queries in one block where a window hides keys


@dataclass(frozen=True)
class Block:
    """Queries [start, end) and the keys they may see.

    Attributes:
        start, end: Packed positions of the queries.
        runs: Contiguous ranges of packed positions that hold the keys, in order; the last one ends at `end`.
        chain: Each query sees all keys up to itself, and the first key is the first query: plain causal attention.
    """

    start: int
    end: int
    runs: tuple[tuple[int, int], ...]
    chain: bool


def blocks(pack: Pack, window: int | None) -> list[Block]:
    """Cut the packed tokens into blocks, so that the estimated time of all kernel calls is the least.

    Any contiguous range [a, b) may be a block: what its tokens see before `a` is seen by token `a` too, so its keys
    are the ancestors of `a` and the range itself.

    Args:
        pack: The trie.
        window: A token sees this many positions of its path, its own included; None = all.
    """
    end, depth = pack.host_end, pack.host_depth
    if window is not None and (not len(depth) or int(depth.max()) < window):
        window = None  # no path is as long: it hides nothing, and chains stay causal calls
    pieces = pack.segments if window is None else _cut(pack.segments, WINDOW_PIECE)
    ancestors = _ancestors(pieces, end)
    known = [sum(b - a for a, b in runs) for runs in ancestors]
    # shortest path over the cuts: best[k] is the least time of the first k pieces, choice[k] its last cut
    best, choice = [0.0], [0]
    for last in range(1, len(pieces) + 1):
        stop = pieces[last - 1][1]
        least, first_of = float("inf"), last - 1
        chain = True  # pieces[first:last] is a single path
        for first in range(last - 1, max(-1, last - 1 - MERGED), -1):
            start = pieces[first][0]
            queries, keys = stop - start, known[first] + stop - start
            chain = chain and int(end[start]) >= stop
            # a causal kernel leaves out half of the products; with ancestors or a window there is a mask
            half = 0.5 if chain and not known[first] and window is None else 1.0
            cost = best[first] + CALL_COST + half * queries * keys + COPY_COST * keys
            if cost < least:
                least, first_of = cost, first
            # the queries with their ancestors alone cost more by now: longer blocks are no better
            if first and queries * known[first] > 4 * least:
                break
        best.append(least)
        choice.append(first_of)
    found: list[Block] = []
    last = len(pieces)
    while last:
        first = choice[last]
        start, stop = pieces[first][0], pieces[last - 1][1]
        path = all(int(end[a]) >= stop for a, _ in pieces[first:last])
        runs = ancestors[first]
        if window is not None:
            runs = _trim(runs, depth, int(depth[start:stop].min()) - window + 1)
        found.append(Block(start, stop, _join((*runs, (start, stop))), path and not runs and window is None))
        last = first
    return found[::-1]


def _cut(segments: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    return [(at, min(at + most, end)) for start, end in segments for at in range(start, end, most)]


def _ancestors(pieces: list[tuple[int, int]], end: Ids) -> list[tuple[tuple[int, int], ...]]:
    """Return for each piece the ranges of packed positions on the path to it, neighbouring ones joined."""
    stack: list[tuple[int, int]] = []
    found = []
    for start, stop in pieces:
        # depth first: what does not reach this piece reaches none after it
        while stack and int(end[stack[-1][0]]) <= start:
            stack.pop()
        found.append(_join(tuple(stack)))
        stack.append((start, stop))
    return found


def _join(runs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for start, stop in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


def _trim(runs: tuple[tuple[int, int], ...], depth: Ids, lowest: int) -> tuple[tuple[int, int], ...]:
    """Return the part of a path's runs at `lowest` depth or deeper; depth grows by one along a path."""
    kept = []
    for start, stop in runs:
        first = max(start, start + lowest - int(depth[start]))
        if first < stop:
            kept.append((first, stop))
    return tuple(kept)


def visible(pack: Pack, queries: Ids, keys: Ids, window: int | None) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return [queries, keys]: whether the token at the packed position may look at the other."""
    q, k = queries[:, None], keys[None, :]
    seen = (k <= q) & (q < pack.host_end[k])
    if window is not None:
        seen &= pack.host_depth[q] - pack.host_depth[k] < window
    return seen


def flex_mask(pack: Pack, window: int | None) -> Any:
    """Return FlexAttention's mask of the pack, its sparsity computed from `end` without the dense matrix.

    A block of keys matters to a later block of queries if any of its subtrees reaches that far, and is seen whole if
    all of them cover it. Lengths are rounded up to whole blocks (fewer shapes to compile for); the tokens added see
    themselves alone.
    """
    from torch.nn.attention.flex_attention import BlockMask

    size, n = FLEX_BLOCK, pack.tokens
    count = -(-n // size)
    end = np.arange(1, count * size + 1)
    depth = np.zeros(count * size, dtype=np.int64)
    end[:n], depth[:n] = pack.host_end, pack.host_depth
    ends, depths = end.reshape(count, size), depth.reshape(count, size)
    start = np.arange(count) * size
    before = np.tri(count, k=-1, dtype=bool)  # [queries, keys]
    # some: any key of the block is seen; whole: all are, and no mask has to be looked at
    some = np.eye(count, dtype=bool) | (before & (ends.max(1)[None, :] > start[:, None]))
    whole = before & (ends.min(1)[None, :] >= start[:, None] + size)
    if window is not None:
        some &= depths.min(1)[:, None] - depths.max(1)[None, :] < window
        whole &= depths.max(1)[:, None] - depths.min(1)[None, :] < window
    device = pack.end.device
    end_at, depth_at = torch.from_numpy(end).to(device), torch.from_numpy(depth).to(device)

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        seen = (k <= q) & (q < end_at[k])
        return seen if window is None else seen & (depth_at[q] - depth_at[k] < window)

    part_count, part_index = _sparse(some & ~whole, device)
    whole_count, whole_index = _sparse(whole, device)
    return BlockMask.from_kv_blocks(
        part_count, part_index, whole_count, whole_index, BLOCK_SIZE=size, mask_mod=mask_mod,
        seq_lengths=(count * size, count * size),
    )  # fmt: skip


def _sparse(blocks: np.ndarray[Any, Any], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how many key blocks each query block has [1, 1, n] and which, those first [1, 1, n, n]."""
    counts = torch.from_numpy(blocks.sum(1).astype(np.int32))
    order = torch.from_numpy(np.argsort(~blocks, axis=1, kind="stable").astype(np.int32))
    return counts[None, None].to(device), order[None, None].to(device)
