"""Shards: how a run is cut, what each is asked, and that gathering them gives what one machine makes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.loading import load
from offline_agent.errors import DataError
from offline_agent.launch.shards import cut, finished, is_whole, listed, shard_config, shards_of
from offline_agent.launch.stages import portable
from offline_agent.pipelines import build_prefs, evaluate
from offline_agent.pipelines.entry import main
from offline_agent.store.columns import PAIR_TABLES
from offline_agent.store.files import write_json

SEARCH = ["tracking.uri=null", "policy=noisy", "policy.noise=0.4", "tasks.n=5", "search.simulations=4"]
PLAY = ["tracking.uri=null", "policy=noisy", "policy.noise=0.4", "tasks.n=5", "attempts=1"]
COMMANDS: dict[str, Any] = {"build_prefs": build_prefs.COMMAND, "evaluate": evaluate.COMMAND}


def content(run: Path) -> dict[str, bytes]:
    folders = ("trees", *PAIR_TABLES, "filtered", "trajectories", "attempts", "quarantine.jsonl")
    files = (file for folder in folders for file in [run / folder, *(run / folder).rglob("*")] if file.is_file())
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def in_shards(name: str, run: Path, keys: list[str], count: int = 2) -> None:
    """Begin a run, cut it, and do every shard, as the jobs of Slurm's do."""
    command = COMMANDS[name]
    config = command.complete(load(command.config, None, [*keys, f"run_dir={run}"]))
    prepared, facts = command.prepare(config)
    from offline_agent.runner.pipeline import open_run

    _, opened = open_run(command, config, facts)
    opened.close()
    tasks = command.spread.tasks(prepared)
    for shard in cut(run, tasks, count):
        shard.file.write_text(portable(shard_config(config, shard, tasks))[0])
        assert main(command, ["--shard", "--config", str(shard.file)]) == 0


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched")
    assert main(build_prefs.COMMAND, [*SEARCH, f"run_dir={folder / 'local'}"]) == 0
    in_shards("build_prefs", folder / "run", SEARCH)
    return folder


@pytest.fixture
def run(searched: Path, tmp_path: Path) -> Path:
    """A run whose shards are done and not merged."""
    return Path(shutil.copytree(searched / "run", tmp_path / "run"))


def merge(run: Path, *keys: str) -> int:
    return main(build_prefs.COMMAND, [*SEARCH, f"run_dir={run}", "--merge", *keys])


def test_a_run_is_cut_once_and_evenly(tmp_path: Path) -> None:
    first = cut(tmp_path, 10, 4)
    assert [(shard.start, shard.stop) for shard in first] == [(0, 2), (2, 5), (5, 7), (7, 10)]
    assert first[3].path == tmp_path / "shards" / "0003" and first[3].file == tmp_path / "shards" / "0003.yaml"
    assert cut(tmp_path, 10, 7) == first == shards_of(tmp_path)  # what was submitted first holds
    with pytest.raises(DataError, match="its shards have 10 tasks, the run has 11"):
        cut(tmp_path, 11, 4)
    (tmp_path / "shards" / "cut.json").write_text('{"bounds": [0, 0]}')
    with pytest.raises(DataError, match="cut.json: broken"):
        shards_of(tmp_path)
    assert len(cut(tmp_path / "few", 3, 8)) == 3 and shards_of(tmp_path / "none") == []
    assert listed(range(14)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more"


def test_a_shard_is_asked_for_its_tasks_with_the_same_budget_for_each(tmp_path: Path) -> None:
    config = load(
        BuildPrefsConfig, None,
        ["tasks.offset=5", "tasks.n=null", "search.budget.tokens=1003", "launcher=slurm"],
    )  # fmt: skip
    shard = cut(tmp_path, 10, 4)[1]
    asked = shard_config(config, shard, 10)
    assert (asked.tasks.offset, asked.tasks.n) == (7, 3)
    assert asked.search.budget.tokens // 3 == 1003 // 10 and asked.search.budget.tool_calls is None
    assert (asked.launcher, asked.tracking.uri, asked.run_dir) == ("local", None, str(shard.path))
    assert asked.search.simulations == config.search.simulations


def test_gathered_shards_are_what_one_machine_makes_and_can_be_gathered_again(searched: Path, run: Path) -> None:
    assert not (run / "preferences").exists() and not (run / "shards" / "0000" / "preferences").exists()
    assert all(is_whole(shard.path) for shard in shards_of(run)) and not is_whole(run)
    assert sum(finished(shard.path, "build_prefs") for shard in shards_of(run)) == 5
    local = content(searched / "local")
    for _ in range(2):
        assert merge(run) == 0
        assert content(run) == local and len(local) == 5 + 5  # trees; tables and the quarantine
    told = json.loads((run / "summary.json").read_text())
    assert told["shards"] == {"count": 2}
    assert json.loads((run / "manifest.json").read_text())["audit"]["verdict"] == "pass"
    shutil.rmtree(run / "shards" / "0001")
    assert merge(run) == 1  # it says what is missing; what was merged stays
    assert content(run) == local


def test_a_merge_without_all_shards_writes_nothing_and_says_how_to_go_on(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = run / "shards" / "0001" / "manifest.json"
    write_json(broken, {**json.loads(broken.read_text()), "status": "failed"})
    assert merge(run) == 1
    said = capsys.readouterr().err
    assert "1 of 2 shards are not done: 1; nothing was merged" in said and f"status run_dir={run}" in said
    assert not any((run / name).exists() for name in ("trees", "preferences", "summary.json"))
    shutil.rmtree(run / "shards")
    assert merge(run) == 1 and "has no shards" in capsys.readouterr().err


def test_a_merge_refuses_a_shard_without_a_tree(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = sorted((run / "shards" / "0001" / "trees").iterdir())[0]
    lost.unlink()
    assert merge(run) == 1
    assert "are missing, though the shard is done" in capsys.readouterr().err
    assert not (run / "preferences").exists()


def test_a_merge_refuses_a_shard_of_another_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "shards" / "0000" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["hashes"]["model"] = "another"
    write_json(file, manifest)
    assert merge(run) == 1
    assert "shard 0 was made with another model (hash another, the run has None)" in capsys.readouterr().err
    assert not (run / "trees").exists()


def test_an_evaluation_in_shards_is_the_same_and_misses_no_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local, run = tmp_path / "local", tmp_path / "run"
    assert main(evaluate.COMMAND, [*PLAY, f"run_dir={local}"]) == 0
    in_shards("evaluate", run, PLAY, 3)
    assert sum(finished(shard.path, "evaluate") for shard in shards_of(run)) == 10
    log = run / "shards" / "0002" / "events" / "0000.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[: whole[:-1].rindex(b"\n") + 1])
    again = [*PLAY, f"run_dir={run}", "--merge"]
    assert main(evaluate.COMMAND, again) == 1
    assert "1 attempts are in no shard, e.g. candidate/" in capsys.readouterr().err
    assert not (run / "attempts").exists()
    log.write_bytes(whole)
    assert main(evaluate.COMMAND, again) == 0
    gathered = (run / "events" / "0000.jsonl").read_bytes()
    assert main(evaluate.COMMAND, again) == 0
    assert (run / "events" / "0000.jsonl").read_bytes() == gathered  # nothing is gathered twice
    assert content(run) == content(local)
