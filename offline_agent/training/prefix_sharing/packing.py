"""Packing: token budgets are filled with sequences that share prefixes."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Several

import numpy as np

from offline_agent.errors import ConfigError
from offline_agent.training.prefix_sharing.trie import Ids, Sequence, computed, shared_length

Key = tuple[int, ...]


def plan(groups: Several[Several[Sequence]], tokens: int) -> list[list[int]]:
    """Put groups of sequences into packs.

    A group (the two sides of a pair, say, or a single sequence) is never torn apart. Groups that share prefixes stay
    together as far as the budget allows; a group over the budget gets a pack of its own.

    Args:
        groups: The sequences of each group.
        tokens: Most packed tokens of a pack, shared ones counted once (as `Pack.tokens` counts them).

    Returns:
        The indices of each pack's groups, ascending; every group exactly once, the packs by their first index. The
        same groups give the same packs.

    Raises:
        ConfigError: `tokens` is below 1.
    """
    if tokens < 1:
        raise ConfigError(f"tokens of one forward pass: got {tokens}, allowed: 1 or more")
    trie = _PackSizes([[computed(sequence) for sequence in group] for group in groups])
    order = sorted(range(len(groups)), key=lambda i: (trie.first(i), i))
    packs: list[tuple[list[int], int]] = []
    for item in sorted(_items(trie, order, tokens), key=lambda item: (-item[1], min(item[0]))):
        best: tuple[int, int] | None = None  # (tokens that are added, pack)
        for index, (members, size) in enumerate(packs):
            if size > tokens:  # a full one may still take what is in it already
                continue
            added = trie.size([*members, *item[0]]) - size
            if size + added <= tokens and (best is None or added < best[0]):
                best = (added, index)
        if best is None:
            packs.append(item)
        else:
            members, size = packs[best[1]]
            packs[best[1]] = ([*members, *item[0]], size + best[0])
    return sorted(sorted(members) for members, _ in packs)


def _items(trie: _PackSizes, order: list[int], tokens: int) -> list[tuple[list[int], int]]:
    """Return runs of neighbouring groups that fit into a budget, cut where neighbours share least."""
    found, open_runs = [], [order] if order else []
    while open_runs:
        run = open_runs.pop()
        size = trie.size(run)
        if size <= tokens or len(run) == 1:
            found.append((run, size))
            continue
        shared = [trie.common(left, right) for left, right in zip(run, run[1:], strict=False)]
        least = min(shared)
        cuts = [at + 1 for at, value in enumerate(shared) if value == least]
        edges = [0, *cuts, len(run)] if least or len(cuts) < len(run) - 1 else list(range(len(run) + 1))
        open_runs.extend(run[a:b] for a, b in zip(edges, edges[1:], strict=False))
    return found


class _PackSizes:
    """Sizes of tries over groups of sequences: sorted, each adds what it does not share with the one before."""

    def __init__(self, groups: list[list[Key]]) -> None:
        distinct = sorted({ids for group in groups for ids in group})
        rank = {ids: index for index, ids in enumerate(distinct)}
        arrays: list[Ids] = [np.asarray(ids, dtype=np.int64) for ids in distinct]
        self._length = [len(ids) for ids in distinct]
        self._shared = [shared_length(a, b) for a, b in zip(arrays, arrays[1:], strict=False)]  # with the next
        self._members = [sorted({rank[ids] for ids in group}) for group in groups]

    def first(self, group: int) -> int:
        """Return the rank of the group's first sequence; -1 for an empty group."""
        return self._members[group][0] if self._members[group] else -1

    def common(self, left: int, right: int) -> int:
        """Return how many leading ids two groups' first sequences share."""
        a, b = sorted((self.first(left), self.first(right)))
        if a < 0:
            return 0
        return self._length[a] if a == b else min(self._shared[a:b])

    def size(self, groups: Iterable[int]) -> int:
        """Return the number of packed tokens of the groups together."""
        ranks = sorted({rank for group in groups for rank in self._members[group]})
        total = 0
        for at, rank in enumerate(ranks):
            total += self._length[rank]
            if at:
                total -= min(self._shared[ranks[at - 1] : rank])
        return total
