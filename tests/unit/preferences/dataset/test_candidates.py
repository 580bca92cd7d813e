"""Candidates as a table: facts in memory, rows on disk, chosen as from a list."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from offline_agent.errors import DataError
from offline_agent.preferences.dataset.balance import Balance, Refuse, balance
from offline_agent.preferences.dataset.candidates import CandidateStore, FactMaker, FactTable, fact_batch
from offline_agent.preferences.dataset.export import pair_row, pair_row_or_refusal, reweighted
from offline_agent.preferences.dataset.packed_rows import pack, unpack
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.refusals import Refusal
from offline_agent.records import Action, Context, PreferencePair, Step
from offline_agent.store import schemas
from offline_agent.store.columns import PREFERENCES, known, stored
from tests.helpers import preferences as kit


def mined(wanted: str = "AB") -> list[PreferencePair]:
    tree = kit.grow(["A B leave", "A C leave", "B leave", "C leave", "look A B leave"] * 4, of=kit.task(wanted))
    return Miner(kit.SPEC, step_seconds=None).mine(tree).pairs


def rows_of(pairs: Sequence[PreferencePair]) -> list[Any]:
    made = (pair_row_or_refusal(pair, None) for pair in pairs)
    return [one if isinstance(one, Refusal) else stored(one, PREFERENCES) for one in made]


def put(store: CandidateStore, pairs: Sequence[PreferencePair]) -> None:
    maker = FactMaker()
    store.add(fact_batch([maker.facts_of(pair) for pair in pairs]), pack(rows_of(pairs), schemas.PREFERENCES))


def taken(store: CandidateStore, rules: Balance, refuse: Refuse) -> list[Any]:
    chosen = rules.choose(store.facts, refuse)
    rows = zip(store.rows(chosen.kept), chosen.weights.tolist(), strict=True)
    return [row if isinstance(row, Refusal) else reweighted({**row, "weight": weight}) for row, weight in rows]


def table(rows: Sequence[Any], path: Path) -> bytes:
    """Return the file of rows, of either table, under the names of one."""
    from offline_agent.store.tables import write_table

    names = [stored(known(row), PREFERENCES) for row in rows]
    return write_table(path, "preferences", names, schemas.PREFERENCES).read_bytes()


def test_rows_come_back_balanced_and_certified_as_from_a_list(tmp_path: Path) -> None:
    trees = [mined("AB"), [], mined("BC"), mined("AB"), mined("CA")]
    rules = Balance(per_task=5, per_depth=3)
    folder = tmp_path / "run"
    store, refused = CandidateStore(folder, schemas.PREFERENCES), []
    for pairs in trees:
        put(store, pairs)
    found = taken(store, rules, refused.append)
    kept, refusals = balance([pair for pairs in trees for pair in pairs], rules)
    assert kept and refusals and len(store) == sum(map(len, trees))
    expected = [pair_row(pair, None) for pair in kept]
    assert table(found, tmp_path / "a.parquet") == table(expected, tmp_path / "b.parquet")
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
    store = CandidateStore(tmp_path, schemas.PREFERENCES)
    put(store, [pair])
    (found,) = taken(store, Balance(max_length_gap=9), lambda refusal: None)
    store.close()
    assert len(found["prompt"]) == 10_001


def test_rows_and_refusals_come_back_in_their_places() -> None:
    rows = rows_of(mined())
    rows[1] = Refusal("row", "t/\ud800", "why", {"n": 1})
    packed = pack(rows, schemas.PREFERENCES)
    again = list(unpack(packed, schemas.PREFERENCES))
    assert again[1] == rows[1] and len(again) == len(rows)
    assert list(unpack(packed, schemas.PREFERENCES, [1, 3])) == [again[1], again[3]]
    assert pack([], schemas.PREFERENCES) == b"" and list(unpack(b"", schemas.PREFERENCES)) == []
    with pytest.raises(DataError, match="does not fit its table"):
        pack([{**rows[0], "node_id": "x"}], schemas.PREFERENCES)


def test_facts_come_back_by_column_however_they_were_added() -> None:
    facts = [FactMaker().facts_of(pair) for pair in mined()]
    table = FactTable(lambda i: facts[i].name)
    for one in facts:
        table.add(fact_batch([one]))
    whole = FactTable.of(facts)
    for name in ("kind", "group", "depth", "chosen_length", "rejected_length", "confidence", "gap"):
        assert table.column(name).tolist() == whole.column(name).tolist()
    for name in ("digest", "forward", "backward"):
        assert [int.from_bytes(getattr(one, name)[:8], "big") for one in facts] == table.key(name, 0).tolist()
        assert table.key(name, 1).tolist() == whole.key(name, 1).tolist()
    assert [table.kind(i) for i in range(len(facts))] == [one.kind for one in facts]
    assert len(FactTable.of([]).column("gap")) == len(FactTable.of([]).key("digest", 0)) == 0


def test_a_candidate_takes_two_hundred_bytes_of_memory_at_most(tmp_path: Path) -> None:
    pair = mined()[0]
    store, sizes = CandidateStore(tmp_path, schemas.PREFERENCES), []
    tracemalloc.start()
    for number in range(1, 121):
        put(store, [replace(pair, tree_id=f"{number}", node_id=node) for node in range(20)])
        if number in (40, 120):
            store.facts.column("gap")  # what was added last is gathered
            gc.collect()
            sizes.append((tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes(), len(store)))
    tracemalloc.stop()
    store.close()
    (few, n), (many, m) = sizes
    assert (many - few) / (m - n) < 200, (sizes, "bytes a pair")
