from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import DataError
from offline_agent.preferences.dataset.balance import Balance, Refuse, balance
from offline_agent.preferences.dataset.candidate_files import PairShelf, Same, kept_of, pack, unpack
from offline_agent.preferences.dataset.candidates import FactMaker
from offline_agent.preferences.mining import Miner
from offline_agent.records import Action, Context, PreferencePair, Step
from offline_agent.store.scratch_files import PieceFile, TextFile
from tests.helpers import preferences as kit


def mined(wanted: str = "AB") -> list[PreferencePair]:
    tree = kit.grow(["A B leave", "A C leave", "B leave", "C leave", "look A B leave"] * 4, of=kit.task(wanted))
    return Miner(kit.SPEC, step_seconds=None).mine(tree).pairs


def put(shelf: PairShelf, pairs: Sequence[PreferencePair]) -> None:
    maker = FactMaker()
    shelf.add([maker.facts_of(pair) for pair in pairs], pack(pairs))


def taken(shelf: PairShelf, rules: Balance, refuse: Refuse) -> list[PreferencePair]:
    same = Same()
    return [pair for packed, kept in shelf.choose(rules, refuse) for pair in kept_of(unpack(packed, same), kept)]


def shown(pair: PreferencePair) -> tuple[Any, ...]:
    return (
        pair.prefix.messages(), list(pair.prefix.tools), pair.prefix.task, pair.chosen, pair.rejected, pair.kind,
        pair.confidence, pair.weight, pair.verdict_chosen, pair.tree_id, pair.node_id, pair.reason,
    )  # fmt: skip


def test_pairs_come_back_balanced_as_from_a_list(tmp_path: Path) -> None:
    trees = [mined("AB"), [], mined("BC"), mined("AB"), mined("CA")]
    rules = Balance(per_task=5, per_depth=3)
    shelf, refused = PairShelf(tmp_path), []
    for pairs in trees:
        put(shelf, pairs)
    found = taken(shelf, rules, refused.append)
    kept, refusals = balance([pair for pairs in trees for pair in pairs], rules)
    assert kept and refusals and len(shelf) == sum(map(len, trees))
    assert [shown(pair) for pair in found] == [shown(pair) for pair in kept]
    assert refused == refusals
    assert len(list(tmp_path.iterdir())) == 2
    shelf.close()
    assert not list(tmp_path.iterdir())


def test_what_pairs_share_is_shared_again_and_what_hangs_on_it_is_not_kept() -> None:
    pairs = mined()
    for pair in pairs:
        for context in pair.prefix.lineage():
            context.segment, context.cache = (1, 2), lambda: "not to be pickled"
    same = Same()
    first, second = (unpack(pack(some), same) for some in (pairs, mined("BC")))
    roots = {id(pair.prefix.lineage()[0]) for pair in first}
    assert len(roots) == len({id(pair.prefix.lineage()[0]) for pair in pairs}) < len(pairs)
    assert all(c.segment is None and c.cache is None for pair in first for c in pair.prefix.lineage())
    tools = {id(pair.prefix.tools) for pair in (*first, *second)}
    assert len(tools) == len({type(pair.prefix.tools) for pair in (*first, *second)})  # for renderers, which ask by id


def test_an_episode_of_thousands_of_turns(tmp_path: Path) -> None:
    context = Context(kit.task(), "", (), "start")
    for _ in range(5000):
        context = context.child(Action("on"), "on")
    step = Step(Action("on"), "on", None)
    pair = replace(mined()[0], prefix=context, chosen=(step,), rejected=(replace(step, key="off"),))
    shelf = PairShelf(tmp_path)
    put(shelf, [pair])
    (found,) = taken(shelf, Balance(max_length_gap=9), lambda refusal: None)
    shelf.close()
    assert found.prefix.depth == 5000


def test_trajectories_are_packed_too_and_nothing_is_nothing() -> None:
    tree = kit.grow(["A B leave", "A C leave"])
    trajectories = Miner(kit.SPEC, step_seconds=None).mine(tree).trajectories
    found = unpack(pack(trajectories), Same())
    assert [t.context.messages() for t in found] == [t.context.messages() for t in trajectories] and found
    assert pack([]) == b"" and unpack(b"", Same()) == []


def test_a_spill_that_somebody_changed_is_not_read_as_something_else(tmp_path: Path) -> None:
    middle = 50_000
    damages = (lambda raw: raw[:-3], lambda raw: raw[:5], lambda raw: raw[:middle] + b"\0\1\2" + raw[middle + 3 :])
    for damage in damages:
        spill = PieceFile(tmp_path, "pairs")
        spill.add(os.urandom(60_000))  # more than is buffered
        spill.add(os.urandom(60_000))
        spill._file.flush()
        raw = spill.path.read_bytes()
        spill.path.write_bytes(damage(raw))
        with pytest.raises(DataError, match=r"pairs.*with this run_dir"):
            list(spill.read())
        spill.close()


def test_pieces_come_back_as_often_as_asked(tmp_path: Path) -> None:
    spill = PieceFile(tmp_path, "pairs")
    assert list(spill.read()) == []
    for number in range(1, 4):
        spill.add(b"x" * number)
        assert [len(piece) for piece in spill.read()] == list(range(1, number + 1))
    spill.close()


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    spill = PieceFile(tmp_path, "pairs")
    spill._file.close()
    spill._file = open("/dev/full", "w+b", buffering=0)  # noqa: SIM115 - closed by `close`
    with pytest.raises(DataError, match=r"pairs.*the disk is full"):
        spill.add(b"piece")
    spill.close()


def test_texts(tmp_path: Path) -> None:
    texts = TextFile(tmp_path, "names")
    names = ["", "a", "ü\ud800", "x" * 9999]
    for number, name in enumerate(names):
        texts.add(name)
        assert texts[number] == name and texts[0] == ""
    assert [texts[i] for i in (3, 1, 2)] == [names[i] for i in (3, 1, 2)] and len(texts) == 4
    texts.close()


def test_a_pair_on_the_shelf_takes_two_hundred_bytes_at_most(tmp_path: Path) -> None:
    pair = mined()[0]
    shelf, sizes = PairShelf(tmp_path), []
    tracemalloc.start()
    for number in range(1, 201):
        put(shelf, [replace(pair, tree_id=f"{number}", node_id=node) for node in range(20)])
        if number in (50, 200):
            gc.collect()
            sizes.append((tracemalloc.get_traced_memory()[0], len(shelf)))
    tracemalloc.stop()
    shelf.close()
    (few, n), (many, m) = sizes
    assert (many - few) / (m - n) < 200, (sizes, "bytes a pair")
