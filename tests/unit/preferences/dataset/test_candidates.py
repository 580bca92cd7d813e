"""Candidates as a table: facts in memory, pairs on disk, chosen as from a list."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from offline_agent.preferences.dataset.balance import Balance, Refuse
from offline_agent.preferences.dataset.candidates import CandidateStore, FactMaker, FactTable, pack, unpack
from offline_agent.preferences.dataset.export import pair_row
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.records import PreferencePair
from offline_agent.preferences.settings import PairRules
from offline_agent.records import Action, Context, Step
from tests.helpers import preferences as kit
from tests.helpers.balance_reference import balanced


def mined(wanted: str = "AB") -> list[PreferencePair]:
    tree = kit.grow(["A B leave", "A C leave", "B leave", "C leave", "look A B leave"] * 4, of=kit.task(wanted))
    return Miner(kit.SPEC, step_seconds=None).mine(tree).pairs


def put(store: CandidateStore, pairs: Sequence[PreferencePair]) -> None:
    maker = FactMaker()
    store.add(FactTable.of(map(maker.facts_of, pairs)), pack(pairs))


def taken(store: CandidateStore, rules: Balance, refuse: Refuse) -> list[PreferencePair]:
    chosen = rules.choose(store.table, refuse)
    return list(store.kept(chosen.kept, chosen.weights))


def test_pairs_come_back_balanced_as_from_a_list(tmp_path: Path) -> None:
    trees = [mined("AB"), [], mined("BC"), mined("AB"), mined("CA")]
    rules = Balance(PairRules(per_task=5, per_depth=3))
    folder = tmp_path / "run"
    store, refused = CandidateStore(folder), []
    for pairs in trees:
        put(store, pairs)
    found = taken(store, rules, refused.append)
    kept, refusals = balanced(rules, [pair for pairs in trees for pair in pairs])
    assert kept and refusals and len(store) == sum(map(len, trees))
    assert [pair_row(pair, None) for pair in found] == [pair_row(pair, None) for pair in kept]
    assert refused == refusals
    assert len(list(folder.iterdir())) == 2
    store.close()
    assert not list(folder.iterdir())


def test_an_episode_of_thousands_of_turns(tmp_path: Path) -> None:
    context = Context(kit.task(), "", (), "start")
    for _ in range(5000):
        context = context.child(Action("on"), "on")
    step = Step(Action("on"), "on", None)
    pair = replace(mined()[0], prefix=context, chosen=(step,), rejected=(replace(step, key="off"),))
    store = CandidateStore(tmp_path)
    put(store, [pair])
    (found,) = taken(store, Balance(PairRules(length_tolerance=9)), lambda refusal: None)
    store.close()
    assert len(found.prefix.messages()) == 10_001


def test_what_a_renderer_keeps_in_histories_is_not_packed() -> None:
    (pair, *_) = mined()
    plain = pack([pair])
    pair.prefix.segment, pair.prefix.cache = (1, 2, 3), object()
    assert pack([pair]) == plain and unpack(plain)[0].prefix.segment is None


def test_a_candidate_takes_two_hundred_bytes_of_memory_at_most(tmp_path: Path) -> None:
    pair = mined()[0]
    store, sizes = CandidateStore(tmp_path), []
    tracemalloc.start()
    for number in range(1, 121):
        put(store, [replace(pair, tree_id=f"{number}", node_id=node) for node in range(20)])
        if number in (40, 120):
            gc.collect()
            sizes.append((tracemalloc.get_traced_memory()[0], len(store)))
    tracemalloc.stop()
    store.close()
    (few, n), (many, m) = sizes
    assert (many - few) / (m - n) < 200, (sizes, "bytes a pair")
