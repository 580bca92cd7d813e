import numpy as np
import pytest
import torch

from offline_agent.errors import DataError
from offline_agent.training.prefix_sharing.layout import blocks, flex_mask, visible
from offline_agent.training.prefix_sharing.trie import Sequence, pack
from tests.helpers.sharing import tree


def plain(*ids: int) -> Sequence:
    return Sequence(ids, (0, *[1] * (len(ids) - 1)))


def check(sequences: list[Sequence]) -> None:
    """Hold a pack against the set of all prefixes that a scored token comes after."""
    packed = pack(sequences)
    prefixes = {s.ids[:k] for s in sequences for n in range(len(s.ids)) if s.scored[n] for k in range(1, n + 1)}
    wanted = {s.ids[: n + 1] for s in sequences for n in range(len(s.ids)) if s.scored[n]}
    ids, depth, end = packed.input_ids.tolist(), packed.position_ids.tolist(), packed.end.tolist()
    paths = []
    for i in range(packed.tokens):
        above = [j for j in range(i + 1) if j <= i < end[j]]
        assert [depth[j] for j in above] == list(range(depth[i] + 1))
        paths.append(tuple(ids[j] for j in above))
    assert len(paths) == packed.tokens == len(prefixes) and set(paths) == prefixes
    assert packed.raw_tokens == sum(len(s.ids) for s in sequences)
    assert packed.scored == len(packed.source) == len(packed.target) == len(wanted)
    scored = [(*paths[s], t) for s, t in zip(packed.source.tolist(), packed.target.tolist(), strict=True)]
    assert set(scored) == wanted
    assert len(packed.rows) == len(packed.paths) == len(sequences)
    for sequence, row, path in zip(sequences, packed.rows, packed.paths, strict=True):
        assert tuple(ids[j] for j in path) == sequence.ids[: len(path)]
        assert len(path) >= max((n for n in range(len(sequence.ids)) if sequence.scored[n]), default=0)
        assert [scored[s] for s in row.tolist()] == [
            sequence.ids[: n + 1] for n in range(len(sequence.ids)) if sequence.scored[n]
        ]
    flat = [token for start, stop in packed.segments for token in range(start, stop)]
    assert flat == list(range(packed.tokens))


@pytest.mark.parametrize(
    "sequences",
    [
        [],
        [plain(5)],
        [plain(5), plain(5)],
        [plain(5), plain(6), plain(5, 6)],
        [plain(1, 2, 3), plain(1, 2, 3)],
        [plain(1, 2, 3), plain(1, 2), plain(1, 2, 3, 4)],
        [Sequence((1, 2, 3), (0, 1, 0)), Sequence((1, 2, 3), (0, 0, 1)), Sequence((1, 2, 4), (0, 0, 1))],
        [Sequence((1, 2, 3), (0, 0, 0)), plain(9, 9, 9, 9)],
        [plain(2, 1), plain(1, 2), plain(1, 1)],
        tree(1),
        tree(2, depth=5, children=2),
    ],
    ids=str,
)
def test_a_pack_is_the_trie_of_its_sequences(sequences: list[Sequence]) -> None:
    check(sequences)


def test_the_packed_order_does_not_depend_on_the_order_of_the_sequences() -> None:
    sequences = tree(3)
    one, other = pack(sequences), pack(sequences[::-1])
    for name in ("input_ids", "position_ids", "end", "source", "target"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert all(torch.equal(a, b) for a, b in zip(one.rows, other.rows[::-1], strict=True))


@pytest.mark.parametrize(
    ("sequence", "words"),
    [
        (Sequence((), ()), "sequence 1: got no token ids"),
        (Sequence((1, 2), (0,)), "sequence 1: got 1 flags of scored tokens for 2 ids"),
        (Sequence((1, 2), (1, 1)), r"sequence 1: its first token is marked as scored.*scored\[0\] = 0"),
    ],
)
def test_what_cannot_be_packed_is_named(sequence: Sequence, words: str) -> None:
    with pytest.raises(DataError, match=words):
        pack([plain(1, 2), sequence])


def test_moving_a_pack_where_it_is_changes_nothing() -> None:
    packed = pack(tree(1))
    assert packed.to("cpu") is packed


@pytest.mark.parametrize("window", [None, 5, 700])
@pytest.mark.parametrize("seed", range(4))
def test_blocks_hold_exactly_the_keys_that_are_visible(seed: int, window: int | None) -> None:
    long = tuple(range(600))
    sequences = [*tree(seed, depth=4), *[plain(*long, 1000 + i, *range(40 * i)) for i in range(4)]]
    packed = pack(sequences)
    everything = np.arange(packed.tokens)
    known = visible(packed, everything, everything, window)
    found = np.zeros_like(known)
    asked = []
    for block in blocks(packed, window):
        queries = np.arange(block.start, block.end)
        keys = np.concatenate([np.arange(a, b) for a, b in block.runs])
        assert len(set(keys)) == len(keys)
        seen = visible(packed, queries, keys, window)
        if block.chain:
            assert np.array_equal(seen, np.tri(len(queries), dtype=bool)) and len(keys) == len(queries)
        found[np.ix_(queries, keys)] = seen
        asked.extend(queries.tolist())
    assert asked == everything.tolist()
    assert np.array_equal(found, known)


def test_a_window_cuts_long_runs_so_that_no_block_is_square_in_them() -> None:
    packed = pack([plain(*range(5000))])
    cut = blocks(packed, 100)
    assert max(block.end - block.start for block in cut) < 2500
    assert max(sum(b - a for a, b in block.runs) - (block.end - block.start) for block in cut) <= 99


@pytest.mark.parametrize("window", [None, 90])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_the_sparsity_of_the_flex_mask_is_that_of_the_dense_one(count: int, window: int | None) -> None:
    packed = pack([plain(*range(300), 1000 + i, *range(7, 7 + 150 + 9 * i)) for i in range(count)])
    mask = flex_mask(packed, window)
    length = mask.seq_lengths[0]
    assert length % 128 == 0 and packed.tokens <= length < packed.tokens + 128
    at = torch.arange(length)
    dense = mask.mask_mod(0, 0, at[:, None], at[None])
    everything = np.arange(packed.tokens)
    known = visible(packed, everything, everything, window)
    assert np.array_equal(dense[: packed.tokens, : packed.tokens].numpy(), known)
    assert bool(dense.any(1).all())  # no row without a key, whatever was added
    tiles = dense.view(length // 128, 128, length // 128, 128).permute(0, 2, 1, 3)
    some, whole = tiles.any(-1).any(-1), tiles.all(-1).all(-1)
    counts, order = mask.full_kv_num_blocks[0, 0], mask.full_kv_indices[0, 0]
    marked = torch.zeros_like(some)
    for q in range(len(counts)):
        marked[q, order[q, : counts[q]].long()] = True
    assert torch.equal(marked, whole) or (window is not None and bool((whole | ~marked).all()))
    kept = mask.to_dense()[0, 0].bool()
    assert bool((kept | ~some).all())
    if window is None:
        assert torch.equal(kept, some)
