"""examples/: the commands in the first lines of each file run as they are written, with smaller sizes.

Four are run elsewhere: `frozen_lake.py` by test_walk.py, TRL's two loops by test_trl_examples.py, the Slurm iteration
by tests/slurm.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from offline_agent.pipelines.entry import main
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.rendering.renderer import Renderer
from tests.helpers import forked
from tests.helpers.fake_server import FakeServer, seeded_model, serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ELSEWHERE = {
    "frozen_lake.py", "shop_predicates.py", "slurm_iteration.sh", "trl_environment_factory.py",
}  # fmt: skip
HERE = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in ELSEWHERE)
TRAINING = ["optimizer.max_updates=2", "threads=1", "tracking.uri=null"]
SMALLER = {
    "build_prefs": ["tasks.n=4", "search.simulations=16", "tracking.uri=null"],
    "import_logs": ["tracking.uri=null"],
    "train_sft": TRAINING,
    "train_dpo": TRAINING,
    "refine_grpo": ["rounds=1", "rollouts.tasks=2", "rollouts.size=2", "tasks.n=4", "threads=1", "tracking.uri=null"],
}
SIZES = {
    "run_dir=runs/served\n": "search.simulations=2 search.max_steps=3 run_dir=runs/served\n",
    "greedy=false": "max_steps=3 attempts=1 greedy=false",
}
"""Keys of one of the two commands of served_model.sh."""


def commands(path: Path) -> list[str]:
    """Return the commands in a file's docstring; a backslash continues a line."""
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.findall(r"^python .*$", told.replace("\\\n", " "), re.MULTILINE)


@pytest.mark.parametrize("name", HERE)
def test_the_commands_of_an_example_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    (tmp_path / "offline_agent").symlink_to(ROOT / "offline_agent")
    found = commands(EXAMPLES / name)
    assert found, f"{name} has no command in its first lines"
    for line in found:
        words = shlex.split(line)[1:]
        if words[0] != "-m":
            monkeypatch.setattr(sys, "argv", words)
            runpy.run_path(words[0], run_name="__main__")
            continue
        command = words[1].rpartition(".")[2]
        loaded = importlib.import_module(words[1])
        assert main(loaded.COMMAND, [*words[2:], *SMALLER[command]]) == 0, line
    if name == "own_judge.py":
        (run,) = (tmp_path / "runs").glob("build_prefs-*")
        assert '"tidy"' in (run / "events" / "0000.jsonl").read_text(encoding="utf-8")
    if name == "own_log.py":
        summary = json.loads((tmp_path / "runs" / "logs" / "summary.json").read_text())
        assert summary["episodes_read"] == 120 and summary["judged"] and summary["pairs"]["trajectory"]
        assert (tmp_path / "runs" / "logs-dpo" / "model" / "config.json").is_file()


def test_a_served_model_is_searched_and_evaluated(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": forked.path()}
    with serving(FakeServer(seeded_model(Renderer.load(DEFAULT_MODEL)))) as server:
        words = [server.url, "tiny", str(DEFAULT_MODEL), "tasks.n=2", "tracking.uri=null"]
        script = (EXAMPLES / "served_model.sh").read_text(encoding="utf-8")
        for old, new in SIZES.items():
            assert old in script
            script = script.replace(old, new)
        bash = ["bash", "-c", script, "x", *words]
        done = subprocess.run(bash, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "runs" / "served" / "summary.json").read_text())["trajectories"] > 0
    assert (tmp_path / "runs" / "served-evaluated" / "summary.json").is_file()


def test_every_example_runs_somewhere() -> None:
    """Alone catches an example that no test runs."""
    known = {*HERE, *ELSEWHERE, "served_model.sh"}
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")} <= known
    ran = "".join((ROOT / "tests" / place).read_text() for place in (
        "e2e/test_walk.py", "e2e/test_trl_examples.py", "slurm/test_slurm.py"))  # fmt: skip
    page = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("environments.md", "verifiers.md"))
    assert all(Path(name).stem in ran + page for name in ELSEWHERE)
