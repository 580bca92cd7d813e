from functools import cache
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_agent.training.prefix_sharing.log_probabilities import Scorer
from offline_agent.training.prefix_sharing.trie import Sequence, pack, plan
from tests.helpers.sharing import apart, close, gradients, loss, model, together


@st.composite
def sequence(draw: st.DrawFn) -> Sequence:
    ids = draw(st.lists(st.integers(0, 2), min_size=1, max_size=14))  # few ids: much is shared
    flags = draw(st.lists(st.integers(0, 1), min_size=len(ids) - 1, max_size=len(ids) - 1))
    return Sequence(tuple(ids), (0, *flags))


forests = st.lists(sequence(), min_size=1, max_size=12)


@cache
def scored_by(family: str) -> tuple[Any, Scorer]:
    llm = model(family, num_hidden_layers=2, layer_types=None, **({"sliding_window": 4} if "gemma" in family else {}))
    scorer = Scorer(llm)
    assert scorer.shares, scorer.reason
    return llm, scorer


@settings(max_examples=40)
@given(forests, st.sampled_from(["llama", "qwen3", "gemma3_text"]))
def test_any_forest_is_scored_as_its_sequences_are_apart(sequences: list[Sequence], family: str) -> None:
    llm, scorer = scored_by(family)
    packed = pack(sequences)
    known = apart(llm, sequences)
    found = together(scorer(llm, packed).logps, packed)
    for one, other in zip(found, known, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    if packed.scored:
        loss(known).backward()
        grads = gradients(llm)
        loss(found).backward()
        close(gradients(llm), grads)


@given(forests)
def test_a_pack_has_every_prefix_of_a_scored_token_once(sequences: list[Sequence]) -> None:
    packed = pack(sequences)
    prefixes = {s.ids[:k] for s in sequences for n in range(len(s.ids)) if s.scored[n] for k in range(1, n + 1)}
    end = packed.end.tolist()
    ids = packed.input_ids.tolist()
    paths = [tuple(ids[j] for j in range(i + 1) if i < end[j]) for i in range(packed.tokens)]
    assert len(paths) == len(prefixes) and set(paths) == prefixes
    assert packed.position_ids.tolist() == [len(path) - 1 for path in paths]
    scored = [(*paths[s], t) for s, t in zip(packed.source.tolist(), packed.target.tolist(), strict=True)]
    for item, row in zip(sequences, packed.rows, strict=True):
        assert [scored[s] for s in row.tolist()] == [item.ids[: n + 1] for n in range(len(item.ids)) if item.scored[n]]


@given(st.lists(st.lists(sequence(), max_size=3), max_size=25), st.integers(1, 60))
def test_a_plan_has_every_group_once_and_keeps_the_budget(groups: list[list[Sequence]], tokens: int) -> None:
    packs = plan(groups, tokens)
    assert sorted(index for members in packs for index in members) == list(range(len(groups)))
    for members in packs:
        size = pack([item for index in members for item in groups[index]]).tokens
        assert size <= tokens or len(members) == 1
    assert packs == plan(groups, tokens)
    sizes = [pack([item for index in members for item in groups[index]]).tokens for members in packs]
    for one in range(len(packs)):  # no two packs that would have been one
        for other in range(one):
            both = pack([item for index in packs[one] + packs[other] for item in groups[index]]).tokens
            assert both > tokens or max(sizes[one], sizes[other]) > tokens
