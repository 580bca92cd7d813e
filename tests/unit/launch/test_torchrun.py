"""Processes that follow the first: what they read, what they do not write, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.loading import load
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.config.training import TrainDpoConfig, TrainSftConfig
from offline_agent.errors import ConfigError, DataError
from offline_agent.launch import torchrun
from offline_agent.launch.slurm import batch as slurm
from offline_agent.launch.torchrun import Follower, check, rank
from offline_agent.pipelines import build_prefs, train_sft
from offline_agent.pipelines.entry import main
from offline_agent.store.run_directory import RunDirectory
from offline_agent.store.tables import read_table


def test_a_process_alone_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("RANK", "3")  # left over from something else
    assert rank() == 0
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank() == 3


def test_what_several_processes_cannot_do_is_refused() -> None:
    check("train_sft", load(TrainSftConfig, None, ["run_dir=r"]), 2)
    check("refine_grpo", load(RefineGrpoConfig, None, ["run_dir=r"]), 2)
    check("train_dpo", load(TrainDpoConfig, None, ["run_dir=r", "data.runs=[x]"]), 2)
    for name, config, says in (
        ("build_prefs", load(BuildPrefsConfig, None, ["run_dir=r"]), "build_prefs runs in one process"),
        ("train_sft", load(TrainSftConfig), "run_dir: name it; 2 processes must meet there"),
        (
            "train_sft",
            load(TrainSftConfig, None, ["run_dir=r", "scratch.layers=2", "scratch.reading=1"]),
            "scratch.reading: a new model reads in one process",
        ),
    ):
        with pytest.raises(ConfigError, match=says):
            check(name, config, 2)


def test_a_follower_reads_the_run_and_writes_beside_it(tmp_path: Path) -> None:
    import pyarrow as pa

    beside = tmp_path / "beside"
    beside.mkdir()
    with RunDirectory.open(tmp_path / "run", config={}, facts={}, command="train_sft") as run:
        run.events().append({"update": 1})
        follower = Follower(run.path, beside, run.manifest)
        before = (run.path / "events" / "0000.jsonl").read_bytes()
        log = follower.events()
        assert [record["update"] for record in log.read()] == [1]
        log.append({"update": 2})
        assert not follower.quarantine("row", "a", "b") and not (run.path / "quarantine.jsonl").exists()
        assert (run.path / "events" / "0000.jsonl").read_bytes() == before
        assert list(follower.events("none").read()) == [] and not (run.path / "events" / "none.jsonl").exists()
        table = follower.write_rows("demonstrations", [{"n": 1}], pa.schema([("n", pa.int64())]))
        assert list(read_table(table)) == [{"n": 1}] and not (run.path / "demonstrations").exists()
        (follower.path / "checkpoints" / "file").touch()
        assert (run.path / "checkpoints" / "file").exists()  # these are shared


def test_a_follower_waits_for_the_first_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrun, "_PATIENCE", 0.3)
    with pytest.raises(DataError, match="did not begin it"):
        torchrun._opened(tmp_path, "train_sft")
    (tmp_path / "manifest.json").write_text(json.dumps({"command": "train_sft", "run_id": "x"}))
    assert torchrun._opened(tmp_path, "train_sft")["run_id"] == "x"
    with pytest.raises(DataError, match="did not begin it"):
        torchrun._opened(tmp_path, "train_dpo")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_every_process_refuses_it_before_anything_is_written(
    tmp_path: Path, rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    assert main(build_prefs.COMMAND, ["env=shop", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "build_prefs runs in one process, but WORLD_SIZE=2" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_job_of_several_processes_is_refused_when_it_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm, "check", lambda: None)
    new = ["scratch.layers=2", "scratch.reading=1"]
    keys = ["launcher=slurm", "slurm.train_gpus=2", *new, f"run_dir={tmp_path / 'run'}"]
    assert main(train_sft.COMMAND, keys) == 2
    assert "scratch.reading: a new model reads in one" in capsys.readouterr().err and not (tmp_path / "run").exists()
