"""Keys and values: of the sequences in work, in slots, and of earlier histories, in a trie of token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from offline_agent.errors import PolicyError
from offline_agent.rendering.layout import common_prefix

RUN = 128  # positions summed in one product
QUERY_STEP = 4  # rows of a product; fewer round otherwise


def round_up(size: int, step: int) -> int:
    """Return the smallest multiple of `step` that is not below `size`."""
    return -(-size // step) * step


@dataclass(frozen=True)
class CacheShape:
    """Shape of a model's keys and values.

    Attributes:
        layers, heads, kv_heads: Numbers of layers, query heads and key-value heads.
        width: Dimension of one head.
        exact: Whether to use products that give the same bits in any batch (slower on an accelerator).
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
    def span(self) -> int:
        """Most tokens of a slot in one decoding step."""
        return QUERY_STEP if self.exact else 1


class SlotCache:
    """Keys and values of the sequences in work, position p at index p.

    As the capacity grows, slots are given up, the last first, so that the whole stays within `limit`; one is always
    left. The memory starts as zeros: values beyond a sequence's end are always finite and, masked, add exactly 0.

    Args:
        slots: Most sequences.
        limit: Most bytes; see above.

    Attributes:
        data: [layers, 2, slots, kv_heads, capacity, width].
        slots: Sequences that there is room for now.
    """

    def __init__(self, slots: int, shape: CacheShape, dtype: torch.dtype, device: torch.device, limit: int) -> None:
        self.shape = shape
        self.limit = limit
        self.token_bytes = shape.layers * 2 * shape.kv_heads * shape.width * dtype.itemsize
        self.slots, self.capacity = slots, 3 * RUN
        self.slots = self._fitting(self.capacity)
        size = (shape.layers, 2, self.slots, shape.kv_heads, self.capacity, shape.width)
        self.data = torch.zeros(size, dtype=dtype, device=device)

    def _fitting(self, capacity: int) -> int:
        return max(1, min(self.slots, self.limit // (capacity * self.token_bytes)))

    def reserve(self, length: int, used: int) -> bool:
        """Make room for sequences of `length` ids; return False where slots in use would have to be given up.

        Args:
            length: Ids of a sequence.
            used: The first `used` slots may be in use.

        Raises:
            PolicyError: There is not enough memory.
        """
        if length <= self.capacity:
            return True
        capacity = round_up(length, RUN)
        ahead = round_up(max(length, min(2 * self.capacity, self.capacity + 1024)), RUN)
        if self._fitting(ahead) == self.slots:
            capacity = ahead
        slots = self._fitting(capacity)
        if slots < used:
            return False
        layers, two, _, heads, _, width = self.data.shape
        try:
            data = self.data.new_zeros(layers, two, slots, heads, capacity, width)
        except RuntimeError as error:
            raise PolicyError(
                f"no memory for {slots} slots of {capacity} ids: lower policy.slots or policy.max_context ({error})"
            ) from error
        data[:, :, :used, :, : self.capacity] = self.data[:, :, :used]
        self.data, self.slots, self.capacity = data, slots, capacity
        return True

    def read(self, slot: int, start: int, end: int) -> torch.Tensor:
        """Return a copy [layers, 2, kv_heads, end - start, width]."""
        return self.data[:, :, slot, :, start:end].clone()


class TrieNode:
    """A run of ids after its parent's.

    Attributes:
        ids: int [n], n ≥ 1; empty for the root alone.
        kv: [layers, 2, kv_heads, n, head_dim]: keys and values of the run; None for the root, and after eviction.
        logits: [vocabulary] after the last id of the run, where a prompt ended there; else None.
        parent: None for the root, and after eviction.
        children: Child nodes by their first id.
        stamp: Time of the last use, by the trie's own counter.
    """

    __slots__ = ("ids", "kv", "logits", "parent", "children", "stamp")

    def __init__(self, ids: tuple[int, ...], kv: Any, parent: TrieNode | None) -> None:
        self.ids = ids
        self.kv = kv
        self.logits: Any = None
        self.parent = parent
        self.children: dict[int, TrieNode] = {}
        self.stamp = 0

    @property
    def bytes(self) -> int:
        """Memory of the node's tensors."""
        size = 0 if self.kv is None else self.kv.numel() * self.kv.element_size()
        return size + (0 if self.logits is None else self.logits.numel() * self.logits.element_size())


class KVTrie:
    """A radix tree over token ids. Not thread-safe.

    Args:
        budget: Most bytes; beyond, the least recently used leaves are evicted.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.root = TrieNode((), None, None)
        self.bytes = 0
        self.evicted_tokens = 0
        self._clock = 0

    @property
    def full(self) -> bool:
        """Whether histories have been evicted and little room is left."""
        return self.evicted_tokens > 0 and self.bytes > self.budget * 8 // 10

    def match(
        self, ids: tuple[int, ...], anchor: TrieNode | None = None, done: int = 0
    ) -> tuple[list[tuple[TrieNode, int]], int]:
        """Return the path of the longest known prefix of `ids`, as (node, number of its ids used), and its length.

        Args:
            ids: int [n].
            anchor: A node known to end `ids[:done]`, where the search starts; an evicted node is ignored.
            done: See `anchor`.
        """
        self._clock += 1
        path: list[tuple[TrieNode, int]] = []
        if anchor is None or anchor.kv is None:
            node, done = self.root, 0
        else:
            node = anchor
            while anchor is not None and anchor.kv is not None:
                anchor.stamp = self._clock
                path.append((anchor, len(anchor.ids)))
                anchor = anchor.parent
            path.reverse()
        while done < len(ids):
            child = node.children.get(ids[done])
            if child is None:
                break
            child.stamp = self._clock
            size = len(child.ids)
            if ids[done : done + size] != child.ids:
                size = common_prefix(ids[done : done + size], child.ids)
            path.append((child, size))
            done += size
            if size < len(child.ids):
                break
            node = child
        return path, done

    def insert(
        self,
        ids: tuple[int, ...],
        read: Callable[[int, int], Any],
        logits: Any = None,
        anchor: TrieNode | None = None,
        done: int = 0,
    ) -> TrieNode:
        """Store the keys and values of `ids` and return the node at their end.

        Args:
            ids: int [n], n ≥ 1.
            read: Given (start, end), returns a new tensor with the keys and values of `ids[start:end]`.
            logits: [vocabulary] after the last id; None where not known.
            anchor, done: See `match`.
        """
        path, known = self.match(ids, anchor, done)
        node = self.root
        if path:
            node, used = path[-1]
            if used < len(node.ids):
                node = self._split(node, used)
        if known < len(ids):
            child = TrieNode(ids[known:], read(known, len(ids)), node)
            child.stamp = self._clock
            node.children[ids[known]] = child
            self.bytes += child.bytes
            node = child
        if logits is not None and node.logits is None:
            node.logits = logits.clone()
            self.bytes += node.logits.numel() * node.logits.element_size()
        if self.bytes > self.budget:
            self._evict()
        return node

    def clear(self) -> None:
        """Remove everything."""
        for node in self._nodes():
            node.parent = node.kv = node.logits = None
        self.root = TrieNode((), None, None)
        self.bytes = 0

    def _split(self, node: TrieNode, size: int) -> TrieNode:
        """Cut a node in two after `size` ids and return the upper part; the lower keeps identity and children."""
        parent = node.parent
        assert parent is not None  # the root has no ids to cut
        upper = TrieNode(node.ids[:size], node.kv[..., :size, :].clone(), parent)
        upper.stamp = node.stamp
        parent.children[node.ids[0]] = upper
        node.ids, node.kv, node.parent = node.ids[size:], node.kv[..., size:, :].clone(), upper
        upper.children[node.ids[0]] = node
        return upper

    def _evict(self) -> None:
        """Remove leaves, least recently used first, down to nine tenths of the budget."""
        goal = self.budget * 9 // 10
        while self.bytes > goal:
            leaves = sorted((node for node in self._nodes() if not node.children), key=lambda node: node.stamp)
            if not leaves:
                return
            for leaf in leaves:
                parent = leaf.parent
                assert parent is not None  # leaves are never the root
                del parent.children[leaf.ids[0]]
                self.bytes -= leaf.bytes
                leaf.parent = leaf.kv = leaf.logits = None  # contexts may still refer to it: `match` checks `kv`
                self.evicted_tokens += len(leaf.ids)
                if self.bytes <= goal:
                    return

    def _nodes(self) -> list[TrieNode]:
        found: list[TrieNode] = []
        todo = [*self.root.children.values()]
        while todo:
            node = todo.pop()
            todo.extend(node.children.values())
            found.append(node)
        return found


def copy_path(path: Sequence[tuple[TrieNode, int]], target: torch.Tensor) -> None:
    """Write the keys and values of a matched path to `target` [layers, 2, kv_heads, ≥ matched, head_dim]."""
    done = 0
    for node, used in path:
        kv = node.kv if used == len(node.ids) else node.kv[..., :used, :]
        target[..., done : done + used, :].copy_(kv)
        done += used
