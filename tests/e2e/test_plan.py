"""`--plan` on every pipeline, beside what the run then costs."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.loading import load
from offline_agent.config.training import TrainSftConfig
from offline_agent.errors import ConfigError
from offline_agent.launch import plan, stages
from offline_agent.launch.plan import COMMANDS, Cost, amount
from offline_agent.pipelines import entry
from offline_agent.pipelines.entry import main
from tests.helpers import forked
from tests.helpers.bandit import ENV, QUIET, command, in_process, warm_started

ROOT = Path(__file__).parents[2]
SEARCH = [
    "env=shop",
    "policy=noisy",
    QUIET,
    "pairs.kinds=[step,trajectory]",
    "search.simulations=8",
    "limits.workers=2",
    "search.max_steps=8",
    "tasks.n=12",
    "plan.probe=4",
]
PLAY = ["env=shop", "policy=noisy", QUIET, "limits.workers=2", "max_steps=8", "plan.probe=4"]
TRAIN = [QUIET, "threads=1", "batch.rows=4"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes run in this process, in a folder that can be looked at."""
    monkeypatch.setattr(stages, "_run", in_process)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)


def planned(monkeypatch: pytest.MonkeyPatch, pipeline: str, *keys: str) -> Cost:
    """Return what --plan prints; nothing may be left behind."""
    told: list[Cost] = []
    show = plan.show

    def keep(cost: Cost, memory: int, *more: Any) -> Any:
        assert memory > 0
        told.append(cost)
        return show(cost, memory, *more)

    monkeypatch.setattr(plan, "show", keep)
    assert main(command(pipeline), [*keys, "--plan"]) == 0
    left = [str(path) for path in Path.cwd().rglob("*")]
    assert left == [str(Path.cwd() / "temporary")], left
    return told[0]


def size_of(run: Path) -> int:
    return sum(file.stat().st_size for file in run.rglob("*") if file.is_file())


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_started(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, start: Path) -> Path:
    run_dir = tmp_path_factory.mktemp("built") / "run"
    keys = [ENV, QUIET, f"policy.model={start}", "tasks.n=16", "search.simulations=8", "search.max_steps=1"]
    assert main(command("build_prefs"), [*keys, "policy.temperature=1", f"run_dir={run_dir}"]) == 0
    return run_dir


def test_as_a_user_types_it(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    environment["COLUMNS"] = "200"  # names of figures are not broken
    done = forked.run(
        [sys.executable, "-m", "offline_agent.pipelines.build_prefs", "--plan", *SEARCH, f"run_dir={tmp_path}/run"],
        env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not [path for path in tmp_path.iterdir() if path.name != "temporary"]
    assert "expected, from a probe of 4 tasks" in done.stdout
    lines = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.count("│") > 3}
    assert {"time", "memory", "disk"} <= lines.keys()
    assert " 12 " in lines["tasks"]


def test_a_search_comes_to_what_was_expected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = planned(monkeypatch, "build_prefs", *SEARCH)
    assert told.number == 12 and told.unit == "tasks" and told.seconds > 0
    whole = planned(monkeypatch, "build_prefs", *SEARCH, "plan.probe=12")
    assert main(command("build_prefs"), [*SEARCH, f"run_dir={tmp_path}/run"]) == 0
    size = size_of(tmp_path / "run")
    assert 0.9 < whole.disk / size < 1.1  # a probe of all tasks is the run
    assert 0.4 < told.disk / size < 2.5


def test_a_task_of_the_probe_has_the_budget_it_has_in_the_run() -> None:
    keys = ["env=shop", "policy=noisy", "tasks.n=70", "search.budget.tokens=100003", "search.budget.tool_calls=9001"]
    whole = load(BuildPrefsConfig, None, keys)
    small = COMMANDS["build_prefs"][0](whole)
    share = small.search.budget.share(20)
    assert share == whole.search.budget.share(70) and share.tokens and small.tasks.n == 20
    assert small.model_copy(update={"tasks": whole.tasks, "search": whole.search}) == whole


def test_an_evaluation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = [*PLAY, "attempts=2", "tasks.n=10"]
    told = planned(monkeypatch, "evaluate", *keys)
    assert told.number == 10 and told.seconds > 0
    assert main(command("evaluate"), [*keys, f"run_dir={tmp_path}/run"]) == 0
    assert 0.4 < told.disk / size_of(tmp_path / "run") < 2.5


def test_a_command_without_a_plan_says_which_have_one() -> None:
    with pytest.raises(ConfigError, match="allowed: build_prefs, evaluate"):
        plan.plan("audit", load(BuildPrefsConfig), print)


def test_who_cannot_probe_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="give --plan without torchrun"):
        plan.plan("train_sft", load(TrainSftConfig), print)


def test_a_cluster_need_not_be_there_to_plan_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(entry, "_launcher", lambda command, config, part: asked.append(config.launcher))
    told = planned(monkeypatch, "build_prefs", *SEARCH, "launcher=slurm", "plan.probe=2")
    assert told.number == 12
    assert asked == ["local"]  # the probe's own


def test_a_probe_that_fails_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command("build_prefs"), ["--plan", *SEARCH, "policy=tests.e2e.test_plan:Broken"]) == 1
    assert "the probe of the plan failed, and nothing was begun" in capsys.readouterr().err
    assert not list((Path.cwd() / "temporary").iterdir())


class Broken:
    """A policy that is never there."""

    name, renderer, batch_invariant, max_tokens = "broken", None, True, 0
    identity: dict[str, object] = {"kind": "broken"}

    def engine(self) -> Any:
        from offline_agent.errors import PolicyError

        raise PolicyError("nobody is there")

    def close(self) -> None:
        """Nothing is held."""


def test_fine_tuning(monkeypatch: pytest.MonkeyPatch, built: Path, start: Path, tmp_path: Path) -> None:
    keys = [*TRAIN, f"model.path={start}", f"data.runs=[{built}]", "optimizer.epochs=2", "plan.updates=2"]
    told = planned(monkeypatch, "train_sft", *keys)
    kept = json.loads((built / "summary.json").read_text())["filtered"]
    assert told.number == 2 * -(-kept // 4) and told.unit == "updates"
    assert main(command("train_sft"), [*keys, f"run_dir={tmp_path}/run"]) == 0
    trained = json.loads((tmp_path / "run" / "summary.json").read_text())["training"]
    assert told.number == trained["updates"] and told.seconds > 0
    assert 0.9 < told.disk / size_of(tmp_path / "run") < 1.1


def test_demonstrations_and_a_new_model(monkeypatch: pytest.MonkeyPatch) -> None:
    told = planned(
        monkeypatch, "train_sft", *TRAIN, ENV, "tasks.n=64", "scratch.layers=1", "scratch.hidden_size=32",
        "scratch.heads=2", "scratch.key_value_heads=2", "scratch.vocabulary=320", "scratch.max_positions=512",
        "scratch.reading=1", "plan.probe=8", "plan.updates=2",
    )  # fmt: skip
    assert told.number == 16 and told.seconds > 0


def test_preference_training(monkeypatch: pytest.MonkeyPatch, built: Path, start: Path) -> None:
    data = [f"data.runs=[{built}]", "data.kinds=[step,trajectory]"]
    told = planned(monkeypatch, "train_dpo", *TRAIN, f"model.path={start}", *data, "plan.updates=2", "anchor.rows=2")
    pairs = json.loads((built / "summary.json").read_text())["pairs_total"]
    assert told.number == 4 * -(-pairs // 4)  # four epochs


def test_the_online_stage(monkeypatch: pytest.MonkeyPatch, start: Path) -> None:
    told = planned(
        monkeypatch, "refine_grpo", ENV, QUIET, f"model.path={start}", "threads=1", "rollouts.max_steps=1",
        "rollouts.size=4", "rollouts.tasks=4", "tasks.n=32", "rounds=5", "plan.updates=2",
    )  # fmt: skip
    assert told.number == 5 and told.unit == "rounds" and told.seconds > 0


def test_an_update_that_plays_its_round_is_counted_once() -> None:
    seconds = [9.0, 1.0, 4.0, 2.0]  # the first round fills caches
    seen: Any = SimpleNamespace(
        records=lambda *_: [{"update": n + 1, "seconds": one} for n, one in enumerate(seconds)], size=lambda *_: 0,
        path=Path("nowhere"),
    )  # fmt: skip
    wanted: Any = SimpleNamespace(
        rounds=10, objective=SimpleNamespace(passes=2, minibatches=1), checkpoints=SimpleNamespace(keep=1, every=1)
    )
    assert plan._of_rounds(wanted, seen).seconds == 60.0


@pytest.mark.parametrize(
    ("value", "units", "text"),
    [(61.0, plan._TIMES, "61.0 s"), (600.0, plan._TIMES, "10.0 min"), (10800.0, plan._TIMES, "3.0 h"),
     (100, plan._SIZES, "0.1 KiB"), (3 * 2**20, plan._SIZES, "3.0 MiB")],
)  # fmt: skip
def test_amounts_in_words(value: float, units: Any, text: str) -> None:
    assert amount(value, units) == text
