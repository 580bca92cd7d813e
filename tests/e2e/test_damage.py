"""Checkpoints and models with one bit flipped, and weights that training destroyed, as a user meets them."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from examples.bandit import Bandit
from offline_agent.pipelines.entry import main
from offline_agent.store import provenance
from tests.helpers.bandit import ENV, command, warm_started
from tests.helpers.rows import pair, run, trajectory

BANDIT = "env=tests.e2e.test_damage:Unsteady"
COMMANDS = ("train_sft", "train_dpo", "refine_grpo")
TRIED = ("config", "optimizer", "rng_state", "scheduler", "state.json", "template", "token", "training_args", "whole")
"""Parts of names of files in every command's checkpoints."""
Carry = Callable[..., int]


class Unsteady(Bandit):
    """Takes its time, another one in every run."""

    def _pull(self, arm: str) -> str:
        time.sleep(random.uniform(0, 0.05))
        return super()._pull(arm)



@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model that pulls either arm of the bandit."""
    return warm_started(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def keys(start: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the keys of three updates, each followed by a checkpoint, for every command."""
    folder = tmp_path_factory.mktemp("data")
    data = run(folder / "prefs", [pair(n, "tea", "cup") for n in range(4)], [trajectory(n) for n in range(3)])
    every = ["tracking.uri=null", "threads=1", "checkpoints.every=1", "checkpoints.keep=3"]
    offline = [*every, f"data.runs=[{data}]", "optimizer.max_updates=3", "optimizer.epochs=3", "batch.rows=4"]
    online = ["rounds=3", "rollouts.tasks=2", "rollouts.size=4", "rollouts.max_steps=1", "seed=1"]
    return {
        "train_sft": offline,
        "train_dpo": [*offline, "lora.rank=2", "anchor.rows=2"],
        "refine_grpo": [*every, BANDIT, f"model.path={start}", *online, "watch.enabled=false"],
    }


@pytest.fixture(scope="module")
def carry(keys: dict[str, list[str]]) -> Carry:
    """Return what carries a command out in this process."""

    def run_it(name: str, run_dir: Path, *more: str) -> int:
        return main(command(name), [*keys[name], *more, f"run_dir={run_dir}"])

    return run_it


@pytest.fixture(scope="module", params=COMMANDS)
def whole(request: pytest.FixtureRequest, carry: Carry, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return a command and a run directory that it finished without a stop."""
    run_dir = tmp_path_factory.mktemp(request.param) / "run"
    assert carry(request.param, run_dir) == 0
    model = json.loads((run_dir / "summary.json").read_text())["model"]
    assert model["hash"] != model["begun"]["model"]  # it learns
    return request.param, run_dir


def stopped(whole: Path, run_dir: Path) -> Path:
    """Copy a run as if it had been stopped after its second checkpoint."""
    shutil.copytree(whole, run_dir)
    for name in ("model", "adapter", "checkpoints/checkpoint-3"):
        shutil.rmtree(run_dir / name, ignore_errors=True)
    return run_dir


def contents(run_dir: Path, names: Sequence[str]) -> dict[str, bytes]:
    files = sorted(file for name in names for file in (run_dir / name).rglob("*") if file.is_file())
    return {file.relative_to(run_dir).as_posix(): file.read_bytes() for file in files}


def flip(file: Path, bit: int = 4) -> None:
    """Flip a bit in the middle of a file, or of the number of its update where it has that."""
    data = bytearray(file.read_bytes())
    place = data.find(b'"global_step": ')
    data[len(data) // 2 if place < 0 else place + len(b'"global_step": ')] ^= 1 if place >= 0 else bit
    file.write_bytes(data)


def test_a_flipped_bit_in_any_file_of_a_checkpoint_changes_nothing(
    whole: tuple[str, Path], carry: Carry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, begun = whole
    results = ("model", "adapter", "trajectories", "filtered")
    files = sorted(p.name for p in (begun / "checkpoints" / "checkpoint-2").iterdir())
    assert {"optimizer.pt", "rng_state.pth", "trainer_state.json", "scheduler.pt", "whole.json"} <= set(files)
    if name != "train_sft":  # which tries these
        files = [file for file in files if not any(part in file for part in TRIED)]
    for number, damaged in enumerate([None, *files]):
        run_dir = stopped(begun, tmp_path / str(number))
        place = run_dir / "checkpoints" / "checkpoint-2"
        if damaged is not None:
            flip(place / damaged)
        capsys.readouterr()
        assert carry(name, run_dir) == 0, damaged
        assert contents(run_dir, results) == contents(begun, results), damaged
        said = capsys.readouterr().err
        told = json.loads((run_dir / "summary.json").read_text())
        assert told["training"]["resumed_at"] == (2 if damaged is None else 1), damaged
        if damaged is not None:
            note = f"{place} is damaged ("
            assert said.count(note) == 1 and damaged in said and "going on from checkpoint-1" in said
            assert [warning for warning in told["warnings"] if note in warning]
            assert provenance.seal_faults(place) == []  # it was written anew


def test_where_every_checkpoint_is_damaged_the_run_is_refused_and_says_what_to_do(
    carry: Carry, whole: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, begun = whole
    run_dir = stopped(begun, tmp_path / "run")
    flip(run_dir / "checkpoints" / "checkpoint-2" / "rng_state.pth")
    (run_dir / "checkpoints" / "checkpoint-1" / "trainer_state.json").unlink()
    assert carry(name, run_dir) == 1
    said = capsys.readouterr().err
    assert "no sound checkpoint before it" in said and f"remove {run_dir / 'checkpoints'}" in said
    assert "Traceback" not in said and not (run_dir / "model").exists()
    shutil.rmtree(run_dir / "checkpoints")
    assert carry(name, run_dir) == 0
    assert contents(run_dir, ["model", "adapter"]) == contents(begun, ["model", "adapter"])


@pytest.mark.parametrize("whole", ["train_sft"], indirect=True)  # one mechanism loads them for all
@pytest.mark.parametrize("file", ["rng_state.pth", "trainer_state.json", "optimizer.pt", "scheduler.pt"])
def test_a_whole_checkpoint_that_cannot_be_read_ends_in_a_sentence(
    file: str, carry: Carry, whole: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, begun = whole
    run_dir = stopped(begun, tmp_path / "run")
    place = run_dir / "checkpoints" / "checkpoint-2"
    if file == "trainer_state.json":
        flip(place / file)
    else:
        torch.save({"python": Path("a class that no checkpoint needs")}, place / file)
    provenance.seal(place)
    assert carry(name, run_dir) == 1
    said = capsys.readouterr().err
    assert f"{place}: it cannot be loaded" in said and "Else remove it" in said and "Traceback" not in said


def test_a_run_that_only_takes_its_last_checkpoint_writes_the_same_model(
    carry: Carry, whole: tuple[str, Path], tmp_path: Path
) -> None:
    name, begun = whole
    shutil.copytree(begun, tmp_path / "run")
    for folder in ("model", "adapter"):
        shutil.rmtree(tmp_path / "run" / folder, ignore_errors=True)
    assert carry(name, tmp_path / "run") == 0
    results = ("model", "adapter", "checkpoints", "trajectories", "filtered")
    assert contents(tmp_path / "run", results) == contents(begun, results)


def test_two_undisturbed_runs_write_the_same_bytes(carry: Carry, whole: tuple[str, Path], tmp_path: Path) -> None:
    name, begun = whole
    assert carry(name, tmp_path / "run") == 0
    timed = ("trainer_state.json", "training_args.bin", "whole.json")  # seconds, the folder's name, their hashes
    found = []
    for run_dir in (tmp_path / "run", begun):
        tables = contents(run_dir, ["model", "adapter", "trajectories", "filtered", "checkpoints"])
        found.append({n: b for n, b in tables.items() if not (n.startswith("checkpoints") and n.endswith(timed))})
        refused = run_dir / "quarantine.jsonl"
        found[-1]["quarantine"] = refused.read_bytes() if refused.exists() else b""
    assert found[0].keys() == found[1].keys()
    assert [file for file in found[0] if found[0][file] != found[1][file]] == []


def test_a_model_that_was_altered_is_refused_by_those_who_load_it(
    start: Path, carry: Carry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(start, tmp_path / "model")
    flip(tmp_path / "model" / "model.safetensors")
    assert carry("refine_grpo", tmp_path / "run", f"model.path={tmp_path / 'model'}") == 2
    said = capsys.readouterr().err
    assert "model.path" in said and "model.safetensors: its contents are not those that were written" in said
    evaluate = [ENV, "tracking.uri=null", f"policy.model={tmp_path / 'model'}", f"run_dir={tmp_path / 'after'}"]
    assert main(command("evaluate"), evaluate) == 2
    assert "remove whole.json in it" in capsys.readouterr().err
    assert not (tmp_path / "run").exists() and not (tmp_path / "after").exists()


def test_a_last_update_that_destroys_the_weights_is_no_result(
    carry: Carry, whole: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _ = whole
    rate = ["optimizer.learning_rate=1e38", "optimizer.schedule=constant", "optimizer.warmup=0"]
    last = ["rounds=1"] if name == "refine_grpo" else ["optimizer.max_updates=1"]
    run_dir = tmp_path / "run"
    assert carry(name, run_dir, *rate, *last) == 1
    said = capsys.readouterr().err
    assert "update 1: it made weights that are " in said and "Lower optimizer.learning_rate" in said
    assert "Traceback" not in said and json.loads((run_dir / "manifest.json").read_text())["status"] == "failed"
    assert not (run_dir / "model").exists() and not list((run_dir / "checkpoints").glob("checkpoint-*"))


def test_a_model_without_finite_weights_is_called_that(
    start: Path, carry: Carry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(start, tmp_path / "model")
    (tmp_path / "model" / "whole.json").unlink(missing_ok=True)
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    evaluate: list[Any] = [ENV, "tracking.uri=null", f"policy.model={tmp_path / 'model'}", f"run_dir={tmp_path / 'a'}"]
    assert main(command("evaluate"), evaluate) == 2
    said = capsys.readouterr().err
    assert "are not finite: model.norm.weight" in said and "attention" not in said
    assert carry("refine_grpo", tmp_path / "run", f"model.path={tmp_path / 'model'}") == 2
    assert "model.path: the weights of" in capsys.readouterr().err
