"""Commands over environments of other projects and of other interpreters: the same trees as here, and every time."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import TrainingError
from offline_agent.launch import stages
from offline_agent.launch.stages import Stage
from offline_agent.pipelines import build_prefs, evaluate
from offline_agent.pipelines.entry import main
from tests.helpers.bandit import command
from tests.helpers.interpreters import interpreter

KEYS = ["tracking.uri=null", "limits.workers=2", "tasks.n=3", "search.simulations=5"]
ADAPTERS = Path(__file__).parents[1]
GOALS = "offline_agent_environments.adapters.tests.mcp_goals"
PAGE = (ADAPTERS / "README.md").read_text(encoding="utf-8")


def _of_the_page(word: str) -> list[str]:
    """Return the arguments of the page's search whose line has the word."""
    block = PAGE.split("# adapted\n")[1].split("```")[0]
    (line,) = [line for line in block.splitlines() if word in line and "build_prefs" in line]
    return [argument for argument in shlex.split(line)[3:] if not argument.startswith("run_dir=")]


LAKE = _of_the_page("gym:")
FILES = [*_of_the_page("mcp_files"), "search.until=success"]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    return interpreter(tmp_path_factory.mktemp("bare") / "venv")


def searched(run_dir: Path, *keys: str) -> dict[str, bytes]:
    assert main(build_prefs.COMMAND, [*keys, *KEYS, f"run_dir={run_dir}"]) == 0
    trees = {path.name: path.read_bytes() for path in (run_dir / "trees").iterdir()}
    assert len(trees) == 3
    return trees


def summary(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "summary.json").read_text()))


def test_a_search_is_the_same_here_and_in_an_interpreter_that_has_the_library_alone(
    tmp_path: Path,
) -> None:
    pytest.importorskip("gymnasium")
    python = interpreter(tmp_path / "venv", "gymnasium")
    here = searched(tmp_path / "here", *LAKE)
    assert here == searched(tmp_path / "there", *LAKE, f"env.python={python}", "limits.workers=1")
    assert not any(summary(tmp_path / "there")["quarantined"].values())


def test_the_file_server_is_searched_the_same_twice(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    assert searched(tmp_path / "one", *FILES) == searched(tmp_path / "two", *FILES, "limits.workers=1")


def test_task_folders_are_searched_the_same_twice(tmp_path: Path) -> None:
    config = str(ADAPTERS / "configs" / "harbor.yaml")
    keys = ["--config", config, "search.simulations=3", "pairs.kinds=[step]", "audit=off"]
    assert searched(tmp_path / "one", *keys) == searched(tmp_path / "two", *keys, "limits.workers=1")


def test_where_a_server_keeps_state_the_search_replays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mcp")
    keys = [
        f"env=mcp:{{python}} {ADAPTERS}/tests/mcp_servers.py new", "env.tools=[count]", "policy=random",
        f"env.tasks={GOALS}:tasks", f"env.verify={GOALS}:verify", "search.max_steps=2", "search.until=success",
    ]  # fmt: skip
    searched(tmp_path / "run", *keys, "search.simulations=4")
    assert "restored by replay" in capfd.readouterr().err


def test_an_evaluation_is_the_same_here_and_in_an_interpreter_with_nothing(tmp_path: Path, bare: str) -> None:
    keys = ["env=examples.orders:Orders", "policy=noisy", "policy.noise=0.5", "tasks.n=6", "tracking.uri=null"]
    for name, more in (("here", []), ("there", [f"env.python={bare}"])):
        assert main(evaluate.COMMAND, [*keys, *more, f"run_dir={tmp_path / name}"]) == 0
    here, there = summary(tmp_path / "here"), summary(tmp_path / "there")
    assert here["modes"] == there["modes"]


def test_the_stages_of_a_loop_have_the_interpreter(tmp_path: Path, bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def run(stage: Stage, say: Any, again: str) -> None:
        seen.append(stage.config.env.python)
        raise TrainingError("that is enough")

    monkeypatch.setattr(stages, "_run", run)
    keys = ["env=examples.bandit:Bandit", f"env.python={bare}", "tracking.uri=null", "iterations=1", "tasks.n=4"]
    assert main(command("iterate"), [*keys, f"run_dir={tmp_path / 'run'}"]) == 1
    assert seen == [bare]


def test_what_cannot_run_there_is_refused_before_anything_is_written(
    tmp_path: Path, bare: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    for keys, told in (
        (LAKE, "needs the module 'gymnasium'"),
        (["env=examples.orders:Orders", "env.isolate=none"], "got none with env.python"),
    ):
        assert main(build_prefs.COMMAND, [*keys, f"env.python={bare}", f"run_dir={run_dir}"]) == 2
        assert told in capsys.readouterr().err and not run_dir.exists()
