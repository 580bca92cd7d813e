"""Token sequences that share prefixes, packed as one trie in depth-first order.

The subtree of packed token j is the contiguous range [j, end[j]), so token j is visible to token i, its descendant
or itself, exactly where j <= i < end[j]. A token's position is its depth.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from offline_agent.errors import DataError

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
    """
    trie = _PackSizes([[computed(sequence) for sequence in group] for group in groups])
    # neighbours in this order share most, and a run of them is a candidate for a pack
    order = sorted(range(len(groups)), key=lambda i: (trie.first(i), i))
    packs: list[tuple[list[int], int]] = []
    # the largest first; a smaller one then goes where it adds least
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
        # equal sequences have one rank: they cost nothing twice
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
                # what two sequences share is the least that neighbours between them share
                total -= min(self._shared[ranks[at - 1] : rank])
        return total


Ids = np.ndarray[Any, np.dtype[np.int64]]


class Sequence(NamedTuple):
    """Token ids of which some are to be scored.

    Attributes:
        ids: [L] token ids, all of them 0 or more.
        scored: [L] 1 = log π(ids[t] | ids[:t]) is wanted, else 0; scored[0] is 0, since nothing comes before ids[0].
    """

    ids: tuple[int, ...]
    scored: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Pack:
    """One forward pass: sequences as a packed trie, every token that they share in it once.

    Tokens that no scored token comes after are left out: nothing depends on them. So a sequence's last scored token
    is a target only, and a sequence without one takes no room at all.

    Attributes:
        input_ids: [N] int64.
        position_ids: [N] int64, depth in the trie.
        end: [N] int64; token j is visible to token i iff j <= i < end[j].
        source: [S] int64, packed position whose logits score token s; S counts each scored trie token once.
        target: [S] int64, its id.
        rows: For each sequence in the order given, int64 indices into S of the tokens it scores, in order.
        paths: For each sequence the packed positions of its tokens, as far as they are packed; on the host, whatever
            the device.
        segments: (start, end) of every run of packed tokens without a branch inside, in order.
        tokens: N.
        raw_tokens: Sum of the sequences' lengths.
        scored: S.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    end: torch.Tensor
    source: torch.Tensor
    target: torch.Tensor
    rows: list[torch.Tensor]
    paths: list[Ids]
    segments: list[tuple[int, int]]
    tokens: int
    raw_tokens: int
    scored: int
    host_end: Ids = field(repr=False)
    host_depth: Ids = field(repr=False)
    layouts: dict[Any, Any] = field(default_factory=dict, repr=False)  # of the attention, by device, format and window

    def to(self, device: torch.device | str) -> Pack:
        """Return the pack with its tensors on `device`."""
        if self.input_ids.device == torch.device(device):
            return self
        names = ("input_ids", "position_ids", "end", "source", "target")
        moved: dict[str, Any] = {name: getattr(self, name).to(device) for name in names}
        rows = torch.cat(self.rows).to(device).split([len(row) for row in self.rows]) if self.rows else ()
        return replace(self, **moved, rows=list(rows), layouts={})  # one transfer for all rows


def shared_length(left: Ids, right: Ids) -> int:
    """Return how many leading ids two sequences have in common."""
    n = min(len(left), len(right))
    differ = left[:n] != right[:n]
    at = int(differ.argmax()) if n else 0
    return at if n and differ[at] else n


def in_order(sequences: Iterable[tuple[int, ...]]) -> list[int]:
    """Return indices that sort sequences so that neighbours share most: every subtree is a contiguous run."""
    listed = list(sequences)
    return sorted(range(len(listed)), key=listed.__getitem__)


def pack(sequences: list[Sequence]) -> Pack:
    """Pack sequences into one trie.

    Equal sequences, one that is a prefix of another, and sequences without a scored token are all in order: a token
    that any of them scores is scored, and each sequence's row holds those it scores itself. The packed order depends
    on the sequences alone, not on their order.

    Args:
        sequences: None of them empty; the list may be.

    Raises:
        DataError: A sequence is empty, its `scored` has another length, or it scores its first token.
    """
    for index, sequence in enumerate(sequences):
        _check(index, sequence)
    arrays = [np.asarray(sequence.ids, dtype=np.int64) for sequence in sequences]
    # by sequence, not by token: two sequences may share a token that only one of them scores
    flags = [np.asarray(sequence.scored, dtype=np.int64) != 0 for sequence in sequences]
    raw = sum(map(len, arrays))
    ids, depth, end, parent = (np.empty(raw, dtype=np.int64) for _ in range(4))
    wanted = np.zeros(raw, dtype=bool)
    paths: list[Ids] = [np.empty(0, dtype=np.int64)] * len(arrays)
    count, path, before = 0, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    # sorted, so that each sequence goes on from a prefix of the one before it
    for index in in_order(sequence.ids for sequence in sequences):
        now = arrays[index]
        common = shared_length(before, now)
        end[path[common:]] = count  # their subtrees are over
        fresh = np.arange(count, count + len(now) - common)
        ids[fresh], depth[fresh] = now[common:], np.arange(common, len(now))
        path = np.concatenate((path[:common], fresh))
        # of the first new token the last shared one, of the others the one before
        parent[fresh] = path[common - 1 : -1] if common else np.concatenate(([-1], fresh[:-1]))[: len(fresh)]
        wanted[path[flags[index]]] = True
        paths[index] = path
        count, before = count + len(fresh), now
    end[path] = count
    ids, depth, end, parent, wanted = (array[:count] for array in (ids, depth, end, parent, wanted))
    # a token is predicted at its parent, which is the same in every sequence that shares it
    places = np.flatnonzero(wanted)
    rank = np.cumsum(wanted) - 1
    source = parent[places]
    # without what no scored token comes after: nothing would read it
    kept = _kept(end, source)
    before_kept = np.concatenate(([0], np.cumsum(kept)))  # [count + 1], how many are kept before each
    depth, end = depth[kept], before_kept[end[kept]]
    # a run goes on where the next token has the same subtree's end: no branch, no leaf in between
    cuts = [0, *(np.flatnonzero(np.diff(end)) + 1).tolist(), len(end)] if len(end) else [0]
    return Pack(
        input_ids=torch.from_numpy(ids[kept]),
        position_ids=torch.from_numpy(depth.copy()),  # depths, as in a pass of the sequence alone
        end=torch.from_numpy(end.copy()),
        source=torch.from_numpy(before_kept[source]),
        target=torch.from_numpy(ids[places]),
        rows=[torch.from_numpy(rank[way[flag]]) for way, flag in zip(paths, flags, strict=True)],
        paths=[before_kept[way[kept[way]]] for way in paths],
        segments=list(zip(cuts, cuts[1:], strict=False)),
        tokens=len(end),
        raw_tokens=raw,
        scored=len(places),
        host_end=end,
        host_depth=depth,
    )


def _kept(end: Ids, source: Ids) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return bool [N]: whether a token has a source in its subtree."""
    sources = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=len(end)))))
    return sources[end] > sources[:-1]


def computed(sequence: Sequence) -> tuple[int, ...]:
    """Return the ids of a sequence that have to be computed: those before its last scored one."""
    flags = sequence.scored
    # the last scored token itself is a target only, never an input
    last = next((at for at in range(len(flags) - 1, 0, -1) if flags[at]), 0)
    return sequence.ids[:last]


def _check(index: int, sequence: Sequence) -> None:
    if not sequence.ids:
        raise DataError(f"sequence {index}: got no token ids, allowed: one or more; leave empty rows out")
    if len(sequence.scored) != len(sequence.ids):
        raise DataError(
            f"sequence {index}: got {len(sequence.scored)} flags of scored tokens for {len(sequence.ids)} ids, "
            "allowed: one per id"
        )
    if sequence.scored[0]:
        raise DataError(
            f"sequence {index}: its first token is marked as scored, but nothing comes before it; set scored[0] = 0"
        )
