from __future__ import annotations

import gc
import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from offline_agent.pipelines import build_prefs
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages import tables as stage
from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.mining import MinedTree, Miner
from offline_agent.preferences.records import PreferencePair, Refusal
from offline_agent.records import Trajectory
from offline_agent.search.tree import SearchTree

KEYS = ["env=shop", "policy=noisy", "search.simulations=12", "tracking.uri=null", "limits.workers=1"]


def run(run_dir: Path, *keys: str) -> dict[str, Any]:
    assert main(build_prefs.COMMAND, [*KEYS, *keys, f"run_dir={run_dir}"]) == 0
    return dict(json.loads((run_dir / "summary.json").read_text()))


_OF_SESSION = ("resumed", "seconds", "this_session", "checksum")


def without_session(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name not in _OF_SESSION}


def tables(run_dir: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in [*run_dir.glob("*/*.parquet"), run_dir / "quarantine.jsonl"]}


def test_nothing_of_earlier_trees_stays_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[Counter[type]] = []
    found: Counter[type] = Counter()
    choose, mine = Balance.choose, Miner.mine

    def looking(self: Balance, *rest: Any) -> Any:
        gc.collect()
        alive.append(Counter(type(thing) for thing in gc.get_objects()))
        return choose(self, *rest)

    def counting(self: Miner, tree: SearchTree, *more: Any) -> MinedTree:
        mined = mine(self, tree, *more)
        found.update({PreferencePair: len(mined.pairs), Trajectory: len(mined.trajectories), SearchTree: 1})
        found[Refusal] += len(mined.refusals)
        return mined

    monkeypatch.setattr(Balance, "choose", looking)
    monkeypatch.setattr(Miner, "mine", counting)
    run(tmp_path / "run", "tasks.n=16")
    for kind in (PreferencePair, Trajectory, SearchTree, Refusal):
        assert found[kind] > 12 and alive[0][kind] <= found[kind] / 6, (kind, found[kind], alive[0][kind])


def test_what_was_mined_is_not_mined_again_while_all_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, mined = tmp_path / "run", []
    mine = Miner.mine
    monkeypatch.setattr(Miner, "mine", lambda self, tree, *more: mined.append(tree.tree_id) or mine(self, tree, *more))
    first = run(run_dir, "tasks.n=4")
    made = tables(run_dir)
    assert len(mined) == 4
    again = run(run_dir, "tasks.n=4")
    assert len(mined) == 4 and without_session(again) == without_session(first) and again["resumed"]

    tree = next((run_dir / "trees").iterdir())
    os.utime(tree)  # the content counts, not the time
    run(run_dir, "tasks.n=4")
    assert len(mined) == 4
    changes = [
        lambda: tree.write_bytes(gzip.compress(gzip.decompress(tree.read_bytes()), 1)),
        lambda: (run_dir / "filtered" / "0000.parquet").unlink(),
        lambda: (run_dir / "preferences" / "0000.parquet").unlink(),
        lambda: (run_dir / "quarantine.jsonl").write_text(""),
        lambda: (run_dir / "mined.json").write_text('{"schema_version": 1'),
        lambda: (run_dir / "mined.json").write_text(
            json.dumps({**json.loads((run_dir / "mined.json").read_text()), "figures": {"rows": {}}})
        ),
        lambda: monkeypatch.setattr("offline_agent.store.run_directory.code_hash", lambda: "other code"),
    ]
    for number, change in enumerate(changes, 1):
        change()
        summary = run(run_dir, "tasks.n=4")
        assert len(mined) == 4 + 4 * number, f"change {number}"
        assert without_session(summary) == without_session(first) and tables(run_dir) == made
        run(run_dir, "tasks.n=4")
        assert len(mined) == 4 + 4 * number
    assert (run_dir / stage.FIGURES_FILE).exists()
