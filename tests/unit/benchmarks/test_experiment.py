"""Experiments over seeds: what runs when, what is kept of a seed, and what may be put together."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import _experiment as experiment
import big_run
import pair_accuracy
from _experiment import Seed, Stage

from offline_agent.evaluation.statistics import wilson


def attempts(run_dir: Path, rows: list[tuple[str, str, str, bool | None, float | None]]) -> None:
    names = ("policy", "mode", "task_id", "success", "reward")
    (run_dir / "attempts").mkdir(parents=True)
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])
    pq.write_table(table, run_dir / "attempts" / "0000.parquet")


def test_a_seed_keeps_means_of_the_candidate_and_nothing_for_what_nobody_judged(tmp_path: Path) -> None:
    rows = [
        ("candidate", "sampled", "a-1", True, 1.0),
        ("candidate", "sampled", "a-1", False, 0.5),
        ("candidate", "sampled", "b-1", None, None),
        ("candidate", "greedy", "a-1", True, 1.0),
        ("candidate", "greedy", "b-1", False, 0.0),
        ("baseline", "greedy", "a-1", False, 0.0),
    ]
    attempts(tmp_path, rows)
    seed = Seed(0, {})
    seed.add("test", tmp_path)
    assert seed.tasks == ["a-1", "b-1"]
    assert seed.runs["test"]["sampled"] == {"success": [0.5, None], "reward": [0.75, None]}
    assert seed.runs["test"]["greedy"] == {"success": [1.0, 0.0], "reward": [1.0, 0.0]}


def test_tables_take_tasks_that_every_seed_has_judged() -> None:
    def seed(number: int, *means: float | None) -> Seed:
        return Seed(number, {}, ["a-1", "a-2", "b-1"], {"test": {"greedy": {"success": list(means)}}})

    seeds = [seed(0, 1.0, 0.0, 0.25), seed(1, 0.5, None, 0.75)]
    assert experiment.matrix(seeds, "test", "greedy").tolist() == [[1.0, 0.25], [0.5, 0.75]]


def test_how_attempts_ended_is_told_of_those_that_were_sampled_and_judged(tmp_path: Path) -> None:
    def ended(folder: str, *rows: tuple[str, bool | None, bool, int], policy: str = "candidate") -> None:
        run = tmp_path / folder / "attempts"
        run.mkdir(parents=True)
        names = ("mode", "success", "truncated", "invalid_calls")
        table = [dict(zip(names, row, strict=True)) | {"policy": policy} for row in rows]
        pq.write_table(pa.Table.from_pylist(table), run / "0000.parquet")

    shop = [
        ("sampled", True, False, 0),
        ("sampled", False, True, 3),
        ("sampled", False, False, 1),
        ("sampled", False, False, 0),
        ("sampled", None, False, 9),
        ("greedy", False, False, 9),
    ]
    ended("shop", *shop)
    ended("greedy", ("greedy", True, False, 0))
    ended("other", ("sampled", True, False, 0), policy="baseline")
    found = experiment.endings(tmp_path)["endings"]
    assert found == {"shop": {"cut": 0.25, "wrong": 0.5, "invalid": 1.0}}
    other = {"shop": found["shop"] | {"cut": 0.5}}
    twice = [Seed(number, {}, facts={"endings": each}) for number, each in enumerate((found, other))]
    assert experiment.ending_columns(twice, "shop") == {
        "out of steps": "37.5%", "ended wrong": "50.0%", "invalid calls": 1.0,
    }  # fmt: skip


def test_a_big_run_does_not_go_on_with_the_steps_of_another(tmp_path: Path) -> None:
    asked = {"pairs": 9, "trees": 9, "first": 9}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    with pytest.raises(SystemExit, match="'first': 9.*'first': 8.*ask for the same"):
        big_run.run(argparse.Namespace(**{**asked, "first": 8}), tmp_path)


class Commands:
    """Stands in for running a stage: writes what an evaluation leaves, and notes the order."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, folder: Path, stage: Stage) -> None:
        self.ran.append(f"{folder.name}/{stage.name}")
        if stage.pipeline == "evaluate":
            attempts(folder / stage.name, [("candidate", "greedy", "t-1", True, 1.0)])


def plan(seed: int, folder: Path) -> Iterator[Stage]:
    yield Stage("../warm", "train_sft", ())
    yield Stage("loop", "iterate", (), ("../warm",))
    yield Stage("test", "evaluate", (f"seed={seed}",), ("loop",))


@pytest.fixture
def options(tmp_path: Path) -> argparse.Namespace:
    arguments = ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results"), "--seeds", "0", "1"]
    return experiment.arguments(None, ["shop"]).parse_args(arguments)


def test_stages_wait_for_what_they_need_and_seeds_are_kept(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands()
    monkeypatch.setattr(experiment, "_run", commands)
    seeds = experiment.carry_out("x", options, plan, {"tasks": 1}, lambda folder: {"folder": folder.name})
    assert [seed.seed for seed in seeds] == [0, 1]
    for number in (0, 1):
        order = [commands.ran.index(f"seed-{number}/{name}") for name in ("loop", "test")]
        assert order == sorted(order) and commands.ran.index("seed-0/../warm") < order[0]
        kept = json.loads((options.results / "x" / f"seed-{number}.json").read_text())
        assert kept["facts"] == {"folder": f"seed-{number}"} and kept["tasks"] == ["t-1"]
    before = list(commands.ran)
    assert experiment.carry_out("x", options, plan, {"tasks": 1}) == seeds
    assert commands.ran == before  # nothing of a kept seed is run again


def test_a_kept_seed_is_completed_by_the_rows_that_were_added_since(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def longer(seed: int, folder: Path) -> Iterator[Stage]:
        yield from plan(seed, folder)
        yield Stage("other", "train_dpo", (), ("../warm",))
        yield Stage("test-other", "evaluate", (), ("other",))

    commands = Commands()
    monkeypatch.setattr(experiment, "_run", commands)
    before = experiment.carry_out("x", options, plan, {}, lambda folder: {"steps": {"loop": 1}, "cut": 1})
    commands.ran.clear()
    options.seeds = [0]
    (after,) = experiment.carry_out("x", options, longer, {}, lambda folder: {"steps": {"other": 2}})
    assert commands.ran == ["seed-0/../warm", "seed-0/other", "seed-0/test-other"]
    assert after.runs == {**before[0].runs, "test-other": before[0].runs["test"]}
    assert after.facts == {"steps": {"loop": 1, "other": 2}, "cut": 1}
    assert Seed(**json.loads((options.results / "x" / "seed-0.json").read_text())) == after


def test_seeds_of_other_settings_are_planned_and_not_put_together(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiment, "_run", Commands())
    experiment.carry_out("x", options, plan, {"tasks": 1})
    with pytest.raises(SystemExit, match=r"seed-0.json was made with \{'tasks': 1\}, asked for is \{'tasks': 2\}"):
        experiment.carry_out("x", options, plan, {"tasks": 2})
    capsys.readouterr()
    options.plan = True
    with pytest.raises(SystemExit, match="0"):
        experiment.carry_out("x", options, plan, {"tasks": 2})
    assert "pipelines.iterate" in capsys.readouterr().out


def test_a_stage_that_fails_ends_it_and_keeps_nothing(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, stage: Stage) -> Any:
        raise SystemExit(f"{stage.name} ended with status 1")

    monkeypatch.setattr(experiment, "_run", fail)
    with pytest.raises(SystemExit, match="ended with status 1"):
        experiment.carry_out("x", options, plan, {})
    assert not (options.results / "x").exists()


def test_a_signal_ends_the_commands_too(tmp_path: Path) -> None:
    sleeper = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    script = f"""
import argparse, sys
from pathlib import Path
import _experiment as experiment

class Sleeping(experiment.Stage):
    def command(self, folder):
        return [sys.executable, "-c", {sleeper!r}, str(folder / self.name)]

options = argparse.Namespace(results=Path("r"), work=Path("w"), seeds=[0], jobs=2, plan=False)
stages = [Sleeping(name, "evaluate", ()) for name in ("one", "two", "three")]
experiment.carry_out("x", options, lambda seed, folder: stages, {{}})
"""
    path = {**os.environ, "PYTHONPATH": str(Path(experiment.__file__).parent)}
    with subprocess.Popen([sys.executable, "-c", script], env=path, cwd=tmp_path, stderr=subprocess.PIPE) as driver:
        files = [tmp_path / "w" / "seed-0" / name for name in ("one", "two")]
        while not all(file.exists() and file.read_text() for file in files):
            assert driver.poll() is None
            time.sleep(0.02)
        driver.terminate()
        _, said = driver.communicate(timeout=60)
    assert driver.returncode == 1 and b"the same command goes on" in said
    assert not (tmp_path / "w" / "seed-0" / "three").exists()
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


def test_an_interval_of_shares_near_0_or_1_has_a_width() -> None:
    for value in (0.0, 1.0):
        low, high = experiment.share_interval(np.full((3, 40), value))
        assert (low, high) == (pytest.approx(wilson(value, 40)[0]), pytest.approx(wilson(value, 40)[1]))
        low, high = pair_accuracy.interval(np.array([4.0, 0, 2]) * value, np.array([4, 0, 2]))
        assert (low, high) == (pytest.approx(wilson(value, 2)[0]), pytest.approx(wilson(value, 2)[1]))
    spread = np.linspace(0, 1, 40)
    assert experiment.share_interval(spread[None]) == experiment.interval(spread[None])
