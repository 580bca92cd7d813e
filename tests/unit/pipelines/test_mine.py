from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from offline_agent.pipelines import build_prefs
from offline_agent.pipelines.entry import main
from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.mining import MinedTree, Miner
from offline_agent.preferences.records import PreferencePair, Refusal
from offline_agent.records import Trajectory
from offline_agent.search.tree import SearchTree

KEYS = ["env=shop", "policy=noisy", "search.simulations=12", "tracking.uri=null", "limits.workers=1"]


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
    assert main(build_prefs.COMMAND, [*KEYS, "tasks.n=16", f"run_dir={tmp_path / 'run'}"]) == 0
    for kind in (PreferencePair, Trajectory, SearchTree, Refusal):
        assert found[kind] > 12 and alive[0][kind] <= found[kind] / 6, (kind, found[kind], alive[0][kind])
