"""Runs over environments that end their process, change it, or cannot be copied."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from offline_agent.pipelines import build_prefs
from offline_agent.pipelines.entry import main
from tests.helpers import forked

ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
KEYS = [
    "policy=noisy", "policy.noise=0.5", "tasks.n=3", "search.simulations=12", "tracking.uri=null", "limits.workers=2",
]  # fmt: skip


def hostile(name: str, *keys: str) -> list[str]:
    return [f"env=tests.helpers.hostile_environments:{name}", *KEYS, *keys]


def entries(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "quarantine.jsonl").read_text().splitlines()]


def trees(run_dir: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in (run_dir / "trees").iterdir()}
    assert found
    return found


def test_a_tool_that_ends_the_process_ends_the_run_and_says_so_and_isolated_it_costs_a_branch(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "offline_agent.pipelines.build_prefs", *hostile("Dies"), "run_dir=run"]
    done = forked.run(command, cwd=tmp_path, env=ENV)
    assert done.returncode == 1, done.stderr
    for told in ("exited with status 0 in the middle", "under way: pick of Dies, task goal-", "env.isolate=process"):
        assert told in done.stderr
    command.append("env.isolate=process")  # the same run goes on
    done = forked.run(command, cwd=tmp_path, env=ENV)
    assert done.returncode == 0, done.stderr
    lost = [entry for entry in entries(tmp_path / "run") if "its process exited with status 0" in entry["reason"]]
    assert lost and len(trees(tmp_path / "run")) == 3


@pytest.mark.parametrize("how", ["segfault", "kill"])
def test_isolated_a_crash_costs_a_branch(tmp_path: Path, how: str) -> None:
    keys = hostile("Dies", f"env.how={how}", "env.isolate=process", f"run_dir={tmp_path / 'run'}")
    assert main(build_prefs.COMMAND, keys) == 0
    name = {"segfault": "SIGSEGV", "kill": "SIGKILL"}[how]
    assert any(f"its process was killed by {name} in step" in entry["reason"] for entry in entries(tmp_path / "run"))


def test_where_copies_fail_forks_are_chosen_and_the_trees_are_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = hostile("Generates", "env.seconds=0.2", "tasks.n=2", "search.simulations=5")
    assert main(build_prefs.COMMAND, [*keys, f"run_dir={tmp_path / 'forked'}"]) == 0
    assert "copy.deepcopy failed" in (said := capfd.readouterr().err) and "which are forked for snapshots" in said
    assert main(build_prefs.COMMAND, [*keys, "env.isolate=none", f"run_dir={tmp_path / 'replayed'}"]) == 0
    assert "restored by replay" in capfd.readouterr().err
    assert trees(tmp_path / "forked") == trees(tmp_path / "replayed")


def test_what_an_environment_changes_in_the_process_is_undone_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here, mask = os.getcwd(), os.umask(0o027)
    try:
        keys = hostile("Meddles", "env.isolate=none", f"run_dir={tmp_path / 'run'}")
        assert main(build_prefs.COMMAND, keys) == 0
        said = capfd.readouterr().err
        for told in ("another umask than 0027", f"another directory than {here}", "variables"):
            assert told in said
        assert (os.getcwd(), os.umask(0o027)) == (here, 0o027)
    finally:
        os.chdir(here)
        os.umask(mask)


def test_what_changes_the_process_is_isolated_by_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(build_prefs.COMMAND, hostile("Meddles", f"run_dir={tmp_path / 'run'}")) == 0
    assert "environments run in processes of their own" in capfd.readouterr().err
    assert main(build_prefs.COMMAND, hostile("Honest", f"run_dir={tmp_path / 'same'}")) == 0
    assert len(trees(tmp_path / "run")) == len(trees(tmp_path / "same")) == 3
