"""Searches that go on from the middle of kept attempts (`search.roots`): prompts, masks, counts, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_agent.pipelines import build_prefs, import_logs
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.preferences.dataset.export import pair_row, trajectory_row
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.pairs.trajectory import trajectories
from offline_agent.rendering.columns import check_row
from offline_agent.rendering.renderer import Renderer
from offline_agent.search.serialization import tree_from_json, tree_to_json
from offline_agent.search.tree import SearchTree
from offline_agent.store.columns import known
from offline_agent.store.run_directory import read_tree
from offline_agent.store.tables import read_table
from tests.helpers.log_writers import episodes_of
from tests.unit.launch.test_shards import in_shards

OFF = "tracking.uri=null"
KEYS = ["tasks.n=6", "policy=noisy", "policy.noise=0.5", "pairs.kinds=[step,trajectory]", OFF]


def build(*keys: str) -> int:
    return build_prefs.main(build_prefs.COMMAND, [*KEYS, *keys])


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("own") / "a"
    assert build("search.algorithm=best_of_n", "search.simulations=5", f"run_dir={run}") == 0
    return run


def trees(run: Path) -> dict[str, SearchTree]:
    found = (tree_from_json(read_tree(file)) for file in sorted((run / "trees").iterdir()))
    return {tree.task.task_id: tree for tree in found}


def rows(run: Path, *tables: str) -> list[dict[str, Any]]:
    return [row for table in tables for file in sorted((run / table).glob("*.parquet"))
            for row in map(known, read_table(file))]  # fmt: skip


def test_a_shard_of_tasks_that_never_failed_is_not_refused(own: Path, tmp_path: Path) -> None:
    in_shards("build_prefs", tmp_path / "run", [*KEYS, f"search.roots={own}", "search.simulations=2"], 6)


def test_a_tree_begins_in_the_middle_of_a_failed_attempt(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert build(f"search.roots={own}", "search.simulations=24", "pairs.rejudge=1", "run_dir=b") == 0
    begun = {id: tree for id, tree in trees(Path("b")).items() if tree.root.depth}
    assert begun and all(tree.quarantined is None for tree in begun.values())
    for id, tree in begun.items():
        failures = [one.context.messages() for one in trajectories(trees(own)[id])
                    if one.truncated or (one.verdict is not None and not one.verdict.success)]  # fmt: skip
        history = tree.root.context.messages()
        assert any(messages[: len(history)] == history for messages in failures)
        again = tree_from_json(json.loads(json.dumps(tree_to_json(tree))))
        assert [node.context.messages() for node in again.nodes] == [node.context.messages() for node in tree.nodes]
    replayed = json.loads(Path("b/summary.json").read_text())
    depths = sum(tree.root.depth for tree in begun.values())
    assert replayed["this_session"]["calls_replayed"] >= depths
    assert replayed["rejudged"]["judged"] > 0 == replayed["rejudged"]["disagreed"]
    pairs = [row for row in rows(Path("b"), "preferences", "multiturn_preferences") if row["task_id"] in begun]
    for row in pairs:
        history = begun[row["task_id"]].root.context.messages()
        assert row["prompt"][: len(history)] == history
    assert pairs and not any(row["task_id"] in begun for row in rows(Path("b"), "filtered"))
    assert build(f"search.roots={own}", "search.simulations=24", "pairs.rejudge=1", "limits.workers=1",
                 "run_dir=c") == 0  # fmt: skip
    for file in Path("b").glob("*/*.parquet"):
        assert file.read_bytes() == Path("c", *file.parts[1:]).read_bytes()


def test_only_what_was_searched_is_trained_on(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert build(f"search.roots={own}", "search.simulations=16", "run_dir=b") == 0
    renderer = Renderer.load(DEFAULT_MODEL)
    checked = 0
    for tree in (tree for tree in trees(Path("b")).values() if tree.root.depth):
        for one in trajectories(tree):
            row = trajectory_row(one, renderer)
            check_row(renderer, row)
            prompt = renderer.context_ids(tree.root.context)
            assert row["input_ids"][: len(prompt)] == prompt and not any(row["action_mask"][: len(prompt)])
            assert any(row["action_mask"][len(prompt) :])
            checked += 1
        for pair in Miner(None).mine(tree).pairs:
            row = {name: getattr(value, "item", lambda value=value: value)()
                   for name, value in pair_row(pair, renderer).items()}  # fmt: skip
            check_row(renderer, row)
            assert row["prompt_ids"][: len(prompt)] == prompt
    assert checked


def test_logs_give_the_same_beginnings_and_a_false_one_is_no_tree(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    records = [record for record in episodes_of(own) if not record["success"]]
    tasks = {record["task_id"] for record in records}
    for answer, quarantined in (("", 0), (" And more.", len(tasks))):
        for record in records:
            for message in record["messages"]:
                if message["role"] == "tool":
                    message["content"] += answer
        Path("log.jsonl").write_text("\n".join(map(json.dumps, records)))
        run, out = f"logs-{quarantined}", f"searched-{quarantined}"
        assert import_logs.main(import_logs.COMMAND, ["source=log.jsonl", f"run_dir={run}", OFF]) == 0
        assert build(f"search.roots={run}", "search.simulations=4", f"run_dir={out}") == 0
        made = trees(Path(out))
        assert sum(tree.quarantined is not None for tree in made.values()) == quarantined
        if quarantined:
            assert all("the record is of another one" in str(tree.quarantined) for tree in made.values()
                       if tree.quarantined)  # fmt: skip
        else:
            assert {id for id, tree in made.items() if tree.root.depth} == tasks
