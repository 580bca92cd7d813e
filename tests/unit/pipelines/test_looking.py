"""Commands that look at runs and machines: what they show, that it is plain, and what they refuse."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offline_agent.config.build_prefs import TasksSection
from offline_agent.envs import conformance
from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError
from offline_agent.pipelines import __main__ as commands
from offline_agent.pipelines import compare, doctor, inspect, status
from offline_agent.runner.components import make_tasks
from offline_agent.store.files import write_json
from offline_agent.store.run_directory import tree_id_of
from tests.helpers.report import evaluated, searched
from tests.helpers.search import Paths


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return searched(tmp_path_factory.mktemp("looking") / "search", "report=false")


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("evaluations")
    return [evaluated(folder / f"seed{seed}", f"seed={seed}", "report=false") for seed in (0, 1)]


def test_inspect_shows_trees_nodes_pairs_and_trajectories_as_plain_text(
    search: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*keys: str) -> str:
        assert inspect.main([str(search), *keys]) == 0
        out, err = capsys.readouterr()
        assert err == "" and "\x1b" not in out and "\x00" not in out
        return out

    task = "train <b>#1&node=9"
    assert "pairs" in told() and "trees 3" in told()
    lines = told(f"tree={task}").splitlines()
    assert lines[1].startswith("0 start  [visits ") and any("right()" in line and "  solved" in line for line in lines)
    end = next(line.split()[0] for line in lines if line.endswith("  solved"))
    node = told(f"tree={task}", f"node={end}")
    assert "verdict: " in node and "gives 1.00" in node and "[system] Choose." in node
    assert " …" in node and " …" not in told(f"tree={task}", f"node={end}", "full=true")
    assert "chosen: value" in told("pair=0")
    assert "of 0" not in told("pair=0", f"task={task}")
    assert "  [assistant] " in told("pair=0", "kind=step")
    assert "reward 1.00" in told(f"trajectory={task}")


def test_compare_says_that_chance_alone_is_no_difference(
    evaluations: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # no line of the table is broken
    runs = [str(run) for run in evaluations]
    assert compare.main([*runs, runs[0]]) == 0
    out = capsys.readouterr().out
    assert "3 paired comparisons" in out and "seed0 (1)" in out and "not told apart" in out and "on 4 tasks" in out


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("command", {"command": "audit"}, "written by audit"),
        ("status", {"status": "failed"}, "not finished"),
        ("env", {"env": {"name": "other"}}, "its environment is"),
        ("steps", {"config": {"max_steps": 99}}, "it has max_steps=99"),
    ],
)
def test_compare_refuses_what_is_no_comparison(
    evaluations: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, changes: dict, words: str
) -> None:
    other = shutil.copytree(evaluations[1], tmp_path / name)
    manifest = json.loads((other / "manifest.json").read_text())
    config = {**manifest["config"], **changes.get("config", {})}
    write_json(other / "manifest.json", {**manifest, **changes, "config": config})
    assert compare.main([str(evaluations[0]), str(other)]) == 2
    assert words in capsys.readouterr().err


def test_a_comparison_of_tasks_of_other_files_is_refused() -> None:
    first, second, third = (
        SimpleNamespace(path=name, manifest={"hashes": {"task_set": task_set}}, config={"tasks": {"file": file}})
        for name, task_set, file in (("a", "1", "a.jsonl"), ("b", "2", "b.jsonl"), ("c", "2", "a.jsonl"))
    )
    (told,) = compare._differences(first, second)  # type: ignore[arg-type]
    assert "its tasks.file has other tasks" in told
    assert not list(compare._differences(first, third))  # type: ignore[arg-type]  # more of the same file


@pytest.mark.parametrize("key", ["node=1", "kind=step", "task=t"])
def test_a_key_of_a_view_that_is_not_asked_for_is_refused(
    key: str, search: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect.main([str(search), key]) == 2
    assert "which is not given" in capsys.readouterr().err


def test_a_damaged_tree_is_named(search: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = shutil.copytree(search, tmp_path / "broken")
    file = next((broken / "trees").iterdir())
    file.write_bytes(file.read_bytes()[:60])
    name = tree_id_of(search / "trees" / file.name)
    assert inspect.main([str(broken), f"tree={name}"]) == 1
    assert "not readable as a compressed tree" in capsys.readouterr().err


def test_two_tasks_of_one_id_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps({"task_id": name, "code": "000"}) + "\n" for name in "aba"))
    assert len(make_tasks(EnvSpec(Paths), TasksSection(n=2, file=str(file)))) == 2
    with pytest.raises(ConfigError, match=r"lines 1 and 3 have the same task_id, 'a'"):
        make_tasks(EnvSpec(Paths), TasksSection(file=str(file)))


def test_doctor_says_what_a_lack_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "_PROGRAMS", doctor._PROGRAMS[1:])
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    assert "lack  Slurm" in out and "costs: launcher=slurm" in out
    assert doctor.main(["port=3"]) == 2 and "no argument" in capsys.readouterr().err


@pytest.mark.parametrize("main", [inspect.main, status.main, conformance.main, commands.main])
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_is_no_fault(main: Any, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    out, err = capsys.readouterr()
    assert "python -m offline_agent." in out and not err


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main([]) == 0
    listed = {line.split()[2] for line in capsys.readouterr().out.splitlines() if line.startswith("python -m")}
    there = {path.stem for path in Path(status.__file__).parent.glob("[a-z]*.py")} - {"entry"}  # shared by the commands
    assert listed == {f"offline_agent.pipelines.{name}" for name in there} | {"offline_agent.envs.conformance"}
    assert commands.main(["stauts"]) == 2 and "no such command. Did you mean 'status'?" in capsys.readouterr().err


def test_a_command_is_run_by_its_name_as_its_module_is() -> None:
    program = [sys.executable, "-c", "from offline_agent.pipelines.__main__ import main; raise SystemExit(main())"]
    done = subprocess.run([*program, "train-sft", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "train_sft: the request is wrong" in done.stderr
