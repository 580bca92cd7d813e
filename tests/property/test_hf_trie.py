import torch
from hypothesis import given
from hypothesis import strategies as st

from offline_agent.policies.hf.kv_cache import KVTrie, common_prefix, copy_path

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple), min_size=1, max_size=25)


def kv_of(ids, start, end):
    """Keys and values that name the whole history before each position, as a model's do."""
    return torch.stack([torch.full((2, 2, 3, 4), float(hash(ids[: i + 1]) % 2**20)) for i in range(start, end)], dim=3)


def read(ids):
    return lambda start, end: kv_of(ids, start, end)


def nodes(trie):
    todo, out = [trie.root], []
    while todo:
        node = todo.pop()
        todo.extend(node.children.values())
        out.append(node)
    return out[1:]


@given(sequences)
def test_everything_kept_is_found_and_right(many):
    trie = KVTrie(1 << 30)
    prefixes = set()
    for ids in many:
        _, known = trie.match(ids)
        assert known == max(i for i in range(len(ids) + 1) if i == 0 or ids[:i] in prefixes)
        trie.insert(ids, read(ids))
        prefixes |= {ids[: i + 1] for i in range(len(ids))}
        path, known = trie.match(ids)
        assert known == len(ids)
        target = torch.zeros(2, 2, 3, 16, 4)
        copy_path(path, target)
        assert torch.equal(target[..., : len(ids), :], kv_of(ids, 0, len(ids)))
    assert trie.bytes == sum(node.bytes for node in nodes(trie)) == len(prefixes) * 2 * 2 * 3 * 4 * 4


@given(sequences, st.integers(1, 40), st.data())
def test_entering_at_a_known_end_finds_the_same(many, room, data):
    trie = KVTrie(room * 2 * 2 * 3 * 4 * 4)
    anchors = {}
    for ids in many:
        known = [end for end in anchors if ids[: len(end)] == end]
        end = data.draw(st.sampled_from(known)) if known else ()
        anchor = anchors.get(end)
        assert trie.match(ids, anchor, len(end)) == trie.match(ids)
        anchors[ids] = trie.insert(ids, read(ids), None, anchor, len(end))
        for end, node in anchors.items():  # a node that was thrown away says so
            path, found = trie.match(end)
            assert (node.kv is None) == (found < len(end) or path[-1][0] is not node)


@given(sequences, st.integers(0, 12))
def test_the_budget_holds_and_what_is_left_is_right(many, room):
    trie = KVTrie(room * 2 * 2 * 3 * 4 * 4)
    for ids in many:
        trie.insert(ids, read(ids), torch.zeros(2))
        assert trie.bytes <= trie.budget
        assert trie.bytes == sum(node.bytes for node in nodes(trie))
        for other in many:
            path, known = trie.match(other)
            target = torch.zeros(2, 2, 3, 16, 4)
            copy_path(path, target)
            assert known == 0 or torch.equal(target[..., :known, :], kv_of(other, 0, known))


def test_the_least_recently_used_go_first():
    one = 2 * 2 * 3 * 4 * 4
    trie = KVTrie(8 * one)
    for ids in ((1, 1, 1), (2, 2, 2)):
        trie.insert(ids, read(ids))
    trie.match((1, 1, 1))
    trie.insert((3, 3, 3), read((3, 3, 3)))
    assert [trie.match(ids)[1] for ids in ((1, 1, 1), (2, 2, 2), (3, 3, 3))] == [3, 0, 3]
    assert trie.evicted_tokens == 3


def test_logits_stay_with_the_prompt_they_follow():
    trie = KVTrie(1 << 20)
    trie.insert((1, 2, 3), read((1, 2, 3)), torch.ones(5))
    trie.insert((1, 2), read((1, 2)), torch.zeros(5))
    ends = {ids: trie.match(ids)[0][-1][0].logits for ids in ((1, 2), (1, 2, 3))}
    assert torch.equal(ends[1, 2], torch.zeros(5))
    assert torch.equal(ends[1, 2, 3], torch.ones(5))
    assert trie.bytes == sum(node.bytes for node in nodes(trie))


def test_clear_forgets():
    trie = KVTrie(1 << 20)
    trie.insert((1, 2, 3), read((1, 2, 3)))
    trie.clear()
    assert (trie.bytes, trie.match((1, 2, 3))[1]) == (0, 0)


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_common_prefix(left, right):
    size = common_prefix(left, right)
    assert left[:size] == right[:size]
    assert size == min(len(left), len(right)) or left[size] != right[size]
