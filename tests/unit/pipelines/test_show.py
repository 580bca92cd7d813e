"""Looking at pairs: what is picked, and how much of a run is read for it; help of the small commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs import conformance
from offline_agent.pipelines import __main__ as commands
from offline_agent.pipelines import show, status


def pairs(*kinds: str, more: bool = False) -> Iterator[dict[str, Any]]:
    for number, kind in enumerate(kinds):
        yield {"kind": kind, "number": number}
    if more:
        raise AssertionError("more was read than is needed")


def picked(rows: Iterator[dict[str, Any]], kind: str | None, n: int) -> list[int]:
    return [row["number"] for row in show._pick(rows, kind, n)]


def test_different_kinds_come_first() -> None:
    kinds = ("step", "step", "step", "minimal", "step", "trajectory")
    assert picked(pairs(*kinds), None, 3) == [0, 3, 5]
    assert picked(pairs(*kinds), None, 5) == [0, 3, 5, 1, 2]
    assert picked(pairs(*kinds), None, 99) == [0, 3, 5, 1, 2, 4]
    assert picked(pairs(*kinds), "step", 3) == [0, 1, 2]
    assert picked(pairs(*kinds), "hindsight", 3) == []


def test_no_more_is_read_than_is_shown() -> None:
    assert picked(pairs("step", "minimal", more=True), None, 2) == [0, 1]
    assert picked(pairs("minimal", "step", "step", more=True), "step", 2) == [1, 2]
    assert picked(pairs("step", "minimal", "step", "hindsight", "trajectory", more=True), None, 5) == [0, 1, 3, 4, 2]


@pytest.mark.parametrize("main", [show.main, status.main, conformance.main, commands.main])
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_is_no_fault(main: Any, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    out, err = capsys.readouterr()
    assert "python -m offline_agent." in out and not err


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main([]) == 0
    listed = {line.split()[2] for line in capsys.readouterr().out.splitlines() if line.startswith("python -m")}
    there = {path.stem for path in Path(show.__file__).parent.glob("[a-z]*.py")} - {"entry"}  # shared by the commands
    assert listed == {f"offline_agent.pipelines.{name}" for name in there} | {"offline_agent.envs.conformance"}
    assert commands.main(["shwo"]) == 2 and "no such command. Did you mean 'show'?" in capsys.readouterr().err


def test_a_command_is_run_by_its_name_as_its_module_is() -> None:
    program = [sys.executable, "-c", "from offline_agent.pipelines.__main__ import main; raise SystemExit(main())"]
    done = subprocess.run([*program, "train-sft", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "train_sft: the request is wrong" in done.stderr
