"""`judge=` as a user gives it: docs/verifiers.md from the page, other verdicts than without, nothing run in vain."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from offline_agent.config import loading as configuration
from offline_agent.errors import ConfigError
from offline_agent.pipelines import build_prefs, evaluate, iterate, refine_grpo, train_sft
from tests.helpers import forked

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verifiers.md").read_text(encoding="utf-8")
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
SMALL = {
    "build_prefs": ["tasks.n=4", "search.simulations=12", "tracking.uri=null"],
    "evaluate": ["tasks.n=4", "attempts=2", "resamples=100", "tracking.uri=null"],
}
COMMANDS = re.findall(r"^python -m (\S+) (.*)$", PAGE, re.M)


def run(folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", module, *arguments]
    return forked.run(words, env=ENV, cwd=folder, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the page's files."""
    path = tmp_path_factory.mktemp("page")
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.S):
        (path / name).write_text(text)
    (path / "examples").symlink_to(ROOT / "examples")
    return path


def verdicts_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the verdicts of finished branches; those that were cut have none."""
    texts = [row["verdict"] for row in rows(run_dir, "trajectories")]
    return [json.loads(text) for text in texts if text is not None]


def rows(run_dir: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(run_dir / table).to_pylist()
    return found


@pytest.mark.parametrize("number", range(len(COMMANDS)))
def test_the_pages_commands_run(folder: Path, number: int) -> None:
    module, arguments = COMMANDS[number]
    keys, kind = shlex.split(arguments), module.rpartition(".")[2]
    made = [f"run_dir=run-{number}", *SMALL[kind]] if kind in SMALL else []
    done = run(folder, module, *keys, *made)
    assert done.returncode == 0, done.stdout + done.stderr
    if kind == "build_prefs":
        verdicts = verdicts_of(folder / f"run-{number}")
        name = next(key.partition("=")[2] for key in keys if key.startswith("judge=")).rpartition(":")[2]
        assert {verdict["verifier"] for verdict in verdicts} == {name}
        if "quiz" in arguments:
            assert {verdict["success"] for verdict in verdicts} == {True, False}
            pairs = rows(folder / f"run-{number}", "preferences")
            assert pairs and json.loads(pairs[0]["verdict_chosen"])["verifier"] == name
            assert rows(folder / f"run-{number}", "filtered")
    if kind == "evaluate":
        success = {row["success"] for row in rows(folder / f"run-{number}", "attempts")}
        assert success <= {True, False}, "each attempt is judged"


def test_a_judge_of_ones_own_changes_the_verdicts_and_is_in_the_manifest(folder: Path) -> None:
    keys = ["env=shop", "policy=noisy", *SMALL["build_prefs"]]
    for name, judge in (("own", []), ("frugal", ["judge=my_judge:frugal", "judge.most=5"])):
        done = run(folder, "offline_agent.pipelines.build_prefs", *keys, *judge, f"run_dir={name}")
        assert done.returncode == 0, done.stdout + done.stderr
    own, frugal = verdicts_of(folder / "own"), verdicts_of(folder / "frugal")
    assert {verdict["verifier"] for verdict in own} == {"shop"}
    assert sum(v["success"] for v in frugal) < sum(v["success"] for v in own)
    manifest = json.loads((folder / "frugal" / "manifest.json").read_text())
    assert manifest["env"]["judge"] == {"name": "my_judge:frugal", "version": "1", "args": {"most": 5}}
    assert "judge" not in json.loads((folder / "own" / "manifest.json").read_text())["env"]
    other = ("judge=my_judge:frugal", "judge.most=6", "run_dir=frugal")
    again = run(folder, "offline_agent.pipelines.build_prefs", *keys, *other)
    assert again.returncode != 0 and "judge.most" in again.stderr, "a run does not go on with another judge"


@pytest.mark.parametrize(
    "command", [build_prefs, evaluate, iterate, refine_grpo, train_sft], ids=lambda module: module.COMMAND.name
)
def test_a_wrong_judge_is_refused_before_anything_runs(command: Any) -> None:
    policy = ["policy=noisy"] if command in (build_prefs, evaluate) else []
    for keys, said in (
        (["judge=exact_mach"], "Did you mean 'exact_match'?"),
        (["judge=f1", "judge.treshold=1"], "Did you mean 'threshold'?"),
        (["judge=exact_match"], "has no column 'gold'"),
    ):
        with pytest.raises(ConfigError) as caught:
            command.prepare(configuration.load(command.COMMAND.config, None, ["env=shop", *policy, *keys]))
        assert any(said in fault and fault.startswith("judge") for fault in caught.value.faults), caught.value


def test_what_the_judge_raises_is_unscored_and_its_error_is_told(folder: Path) -> None:
    (folder / "raising.py").write_text("def judge(trajectory):\n    raise RuntimeError('no network')\n")
    keys = ["env=my_quiz:Quiz", "policy=noisy", *SMALL["evaluate"], "judge=raising:judge", "run_dir=raised"]
    done = run(folder, "offline_agent.pipelines.evaluate", *keys)
    attempts = rows(folder / "raised", "attempts")
    assert attempts and all(row["success"] is None and row["reward"] is None for row in attempts), done.stderr
    assert "RuntimeError: no network" in attempts[0]["error"]
