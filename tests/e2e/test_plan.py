"""`--plan` on every pipeline, and expected beside actual after a run that was begun with one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from offline_agent.launch import stages
from offline_agent.pipelines import entry
from offline_agent.pipelines.entry import main
from offline_agent.planning import plan
from offline_agent.store.columns import PAIR_TABLES
from offline_agent.store.events import EventLog
from tests.helpers.bandit import ENV, QUIET, command, in_process, warm_started

ROOT = Path(__file__).parents[2]
SEARCH = [
    "env=shop",
    "policy=noisy",
    QUIET,
    "pairs.kinds=[step,trajectory]",
    "pairs.criticality=none",
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


def planned(monkeypatch: pytest.MonkeyPatch, pipeline: str, *keys: str) -> dict[str, Any]:
    """Return the figures that --plan prints, by name; nothing may be left behind."""
    told: dict[str, Any] = {}
    show = plan.show

    def keep(figures: Any, *more: Any) -> Any:
        told.update(figures)
        return show(figures, *more)

    monkeypatch.setattr(plan, "show", keep)
    assert main(command(pipeline), [*keys, "--plan"]) == 0
    left = [str(path) for path in Path.cwd().rglob("*")]
    assert left == [str(Path.cwd() / "temporary")], left
    return told


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_started(tmp_path_factory.mktemp("start") / "run")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, start: Path) -> Path:
    run_dir = tmp_path_factory.mktemp("built") / "run"
    keys = [ENV, QUIET, f"policy.model={start}", "tasks.n=16", "search.simulations=8", "search.max_steps=1"]
    assert main(command("build_prefs"), [*keys, "policy.temperature=1", f"run_dir={run_dir}"]) == 0
    return run_dir


def test_as_a_user_types_it(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    environment["COLUMNS"] = "200"  # names of figures are not broken
    done = subprocess.run(
        [sys.executable, "-m", "offline_agent.pipelines.build_prefs", "--plan", *SEARCH, f"run_dir={tmp_path}/run"],
        capture_output=True, text=True, env=environment, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not [path for path in tmp_path.iterdir() if path.name != "temporary"]
    assert "expected on 1 generator, from a probe of 4 tasks" in done.stdout
    lines = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.count("│") > 3}
    assert {"tool calls", "prompt tokens without cache", "seconds working", "pairs", "disk"} <= lines.keys()
    assert " 12 " in lines["trees"] and "no spread" in lines["trees"]


def test_a_search_comes_to_what_was_expected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = planned(monkeypatch, "build_prefs", *SEARCH)
    for name in ("tool_calls", "pairs", "disk", "seconds_working"):
        assert told[name]["low"] <= told[name]["expected"] <= told[name]["high"], name
    assert told["trees"]["expected"] == 12 and told["tokens_sampled"]["expected"] == 0
    run_dir, plain = tmp_path / "run", tmp_path / "plain"
    assert main(command("build_prefs"), [*SEARCH, "plan.expect=true", f"run_dir={run_dir}"]) == 0
    assert main(command("build_prefs"), [*SEARCH, f"run_dir={plain}"]) == 0
    summary = json.loads((run_dir / "summary.json").read_text())
    assert "expected" not in json.loads((plain / "summary.json").read_text())
    found = summary["expected"]
    assert found["tool_calls"]["expected"] == told["tool_calls"]["expected"]  # the same probe
    assert found["tool_calls"]["actual"] == summary["tool_calls"]
    assert found["pairs"]["actual"] == summary["pairs_total"] and found["trees"]["ratio"] == 1
    assert found["pairs"]["ratio"] == round(summary["pairs_total"] / found["pairs"]["expected"], 4)
    for name in ("seconds_working", "seconds_mining", "disk"):
        assert found[name]["actual"] > 0, name
    for table in ("trees", *PAIR_TABLES, "filtered", "trajectories"):  # the plan changes nothing
        ours, theirs = ({p.name: p.read_bytes() for p in (r / table).iterdir()} for r in (run_dir, plain))
        assert ours == theirs, table
    logs = [[str(record) for record in EventLog(r / "events" / "0000.jsonl").read()] for r in (run_dir, plain)]
    assert sorted(logs[0]) == sorted(logs[1])


def test_what_the_probe_searched_is_not_searched_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from offline_agent.pipelines import build_prefs

    searched: list[int] = []
    search = build_prefs.search

    def count(parts: Any, session: Any, *more: Any) -> None:
        searched.append(len(parts.tasks) - len(session.run.tree_ids()))
        search(parts, session, *more)

    monkeypatch.setattr(build_prefs, "search", count)
    keys = [*SEARCH, "plan.expect=true", f"run_dir={tmp_path}/run"]
    assert main(command("build_prefs"), keys) == 0
    assert searched == [4, 8]
    assert main(command("build_prefs"), keys) == 0  # a finished run is only shown again: no second probe
    assert searched == [4, 8, 0]
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["expected"]
    assert found["pairs"]["actual"] and found["seconds_working"]["actual"] is None  # that session searched nothing


def test_an_evaluation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = [*PLAY, "attempts=2", "tasks.n=10"]
    told = planned(monkeypatch, "evaluate", *keys)
    assert told["attempts"]["expected"] == 30 and "pairs" not in told
    assert main(command("evaluate"), [*keys, "plan.expect=true", f"run_dir={tmp_path}/run"]) == 0
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["expected"]
    assert found["attempts"]["ratio"] == 1 and found["tool_calls"]["actual"] > 0
    assert found["tool_calls"]["expected"] == told["tool_calls"]["expected"]


def test_given_figures_need_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "run_stage", None, raising=False)
    monkeypatch.setattr(stages, "_run", None)  # nothing is run
    told = planned(
        monkeypatch, "build_prefs", *SEARCH, "plan.probe=0", "plan.tokens=500", "plan.tokens_per_second=100",
        "plan.tool_calls=10", "plan.tool_seconds=3", "plan.pairs=2.5", "plan.generators=4",
    )  # fmt: skip
    assert told["tokens_sampled"]["expected"] == 6000 and told["pairs"]["expected"] == 30
    assert told["seconds_working"]["expected"] == pytest.approx(12 * 10 * 3 / 2)  # 2 workers
    assert told["prompt_tokens_computed"]["expected"] is None and "plan.probe" in told["disk"]["note"]


def test_a_finished_run_serves_as_a_probe(monkeypatch: pytest.MonkeyPatch, built: Path, start: Path) -> None:
    keys = [ENV, QUIET, f"policy.model={start}", "tasks.n=32", "search.simulations=8", "search.max_steps=1"]
    told = planned(monkeypatch, "build_prefs", *keys, f"plan.rates={built}", "plan.tokens_per_second=10")
    summary = json.loads((built / "summary.json").read_text())
    assert told["tokens_sampled"]["expected"] == pytest.approx(2 * summary["generated"])
    assert told["pairs"]["expected"] == pytest.approx(2 * summary["pairs_total"])
    once, computed, whole = (
        told[f"prompt_tokens_{name}"]["expected"] for name in ("once", "computed", "without_cache")
    )
    assert 0 < once <= whole and 0 < computed <= whole  # a cache shares across trees too
    assert told["seconds_working"]["expected"] >= told["tokens_sampled"]["expected"] / 10


@pytest.mark.parametrize(
    ("pipeline", "keys", "words"),
    [
        ("build_prefs", ("plan.prob=3",), "Did you mean 'plan.probe'?"),
        ("build_prefs", ("plan.generators=0", "plan.cached=2"), "plan.cached: got 2, allowed"),
        ("build_prefs", ("--pln",), "Did you mean '--plan'?"),
        ("build_prefs", ("plan.rates=nowhere",), "plan.rates: nowhere is no finished run"),
        ("evaluate", ("plan.rates={built}",), "is a run of build_prefs"),
        ("build_prefs", ("policy=nosy",), "Did you mean 'noisy'?"),
    ],
)
def test_faults(
    pipeline: str, keys: tuple[str, ...], words: str, built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [key.format(built=built) for key in keys]
    assert main(command(pipeline), ["--plan", *(PLAY if pipeline == "evaluate" else SEARCH), *given]) == 2
    told = capsys.readouterr()
    assert words in told.err and not told.out
    assert [path.name for path in Path.cwd().iterdir()] == ["temporary"]


def test_who_cannot_probe_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("build_prefs"), [*SEARCH, "plan.expect=true", "launcher=slurm"]) == 2
    assert "plan.expect: got true, but with launcher=slurm" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(command("train_sft"), [*TRAIN, ENV, "--plan"]) == 2
    assert "give --plan without torchrun" in capsys.readouterr().err
    assert [path.name for path in Path.cwd().iterdir()] == ["temporary"]


def test_a_cluster_need_not_be_there_to_plan_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(entry._Extensions, "launcher", lambda _, command, config, *more: asked.append(config.launcher))
    told = planned(monkeypatch, "build_prefs", *SEARCH, "launcher=slurm", "plan.generators=8", "plan.probe=2")
    assert told["trees"]["expected"] == 12 and told["tool_calls"]["expected"] > 0
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
    assert told["rows"]["expected"] == told["rows"]["high"] == kept
    assert told["updates"]["expected"] == 2 * -(-kept // 4)
    assert 0 < told["tokens_a_step"]["low"] <= told["tokens_a_step"]["expected"] < told["tokens_computed"]["expected"]
    assert told["checkpoint"]["expected"] > 100_000
    assert main(command("train_sft"), [*keys, "plan.expect=true", f"run_dir={tmp_path}/run"]) == 0
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["expected"]
    assert found["updates"]["ratio"] == 1 and found["rows"]["ratio"] == 1
    assert 0.7 < found["tokens_computed"]["ratio"] < 1.4 and 0.9 < found["disk"]["ratio"] < 1.1
    assert found["seconds_training"]["actual"] > 0


def test_demonstrations_and_a_new_model(monkeypatch: pytest.MonkeyPatch) -> None:
    told = planned(
        monkeypatch, "train_sft", *TRAIN, ENV, "tasks.n=64", "scratch.layers=1", "scratch.hidden_size=32",
        "scratch.heads=2", "scratch.key_value_heads=2", "scratch.vocabulary=320", "scratch.max_positions=512",
        "scratch.reading=1", "plan.probe=8", "plan.updates=2", "plan.update_seconds=3",
    )  # fmt: skip
    assert told["rows"]["expected"] == pytest.approx(64)
    assert told["updates"]["expected"] == 16 and told["seconds_training"]["expected"] == 48
    assert told["seconds_reading"]["expected"] > 0


def test_training_without_a_probe(monkeypatch: pytest.MonkeyPatch, built: Path, start: Path) -> None:
    keys = [*TRAIN, f"model.path={start}", f"data.runs=[{built}]", "plan.probe=0"]
    told = planned(monkeypatch, "train_sft", *keys)
    kept = json.loads((built / "summary.json").read_text())["filtered"]
    assert told["rows"]["expected"] is None and told["rows"]["high"] == kept
    assert told["updates"]["high"] == -(-kept // 4)
    for name in ("seconds_training", "memory", "tokens_a_step"):
        assert told[name]["expected"] is None and told[name]["note"], name


def test_preference_training(monkeypatch: pytest.MonkeyPatch, built: Path, start: Path) -> None:
    data = [f"data.runs=[{built}]", "data.kinds=[step,trajectory]"]
    keys = [*TRAIN, f"model.path={start}", *data, "plan.updates=2", "anchor.rows=2"]
    told = planned(monkeypatch, "train_dpo", *keys)
    pairs = json.loads((built / "summary.json").read_text())["pairs_total"]
    assert told["rows"]["expected"] == pairs and told["updates"]["expected"] == -(-pairs // 4)
    assert told["tokens_of_rows"]["expected"] > told["tokens_computed"]["expected"] > 0


def test_the_online_stage(monkeypatch: pytest.MonkeyPatch, start: Path, tmp_path: Path) -> None:
    keys = [
        ENV, QUIET, f"model.path={start}", "threads=1", "rollouts.max_steps=1", "rollouts.size=4", "rollouts.tasks=4",
        "tasks.n=32", "rounds=5", "plan.updates=2",
    ]  # fmt: skip
    told = planned(monkeypatch, "refine_grpo", *keys)
    assert told["episodes"]["expected"] == told["tool_calls"]["high"] == 80 or told["episodes"]["expected"] >= 80
    assert told["updates"]["expected"] == 5 and told["tokens_sampled"]["expected"] > 80
    assert main(command("refine_grpo"), [*keys, "plan.expect=true", f"run_dir={tmp_path}/run"]) == 0
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["expected"]
    assert found["episodes"]["actual"] >= 80 and 0.5 < found["tokens_sampled"]["ratio"] < 2
    told = planned_without_looking(monkeypatch, "refine_grpo", *keys, "plan.probe=0", "plan.update_seconds=2")
    assert told["episodes"]["expected"] == 80 and told["tool_calls"]["high"] == 80
    assert told["seconds_training"]["expected"] == 10 and told["memory"]["expected"] is None


def planned_without_looking(monkeypatch: pytest.MonkeyPatch, pipeline: str, *keys: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    monkeypatch.setattr(plan, "show", lambda figures, *more: told.update(figures) or "")
    assert main(command(pipeline), [*keys, "--plan"]) == 0
    return told


def test_the_loop(monkeypatch: pytest.MonkeyPatch, start: Path, tmp_path: Path) -> None:
    keys = [
        ENV, QUIET, f"policy.model={start}", "policy.temperature=1", "iterations=2", "tasks.n=16", "threads=1",
        "search.simulations=8", "search.max_steps=1", "held_out.n=20", "held_out.attempts=1", "sft.batch.rows=8",
        "dpo.batch.rows=8", "dpo.anchor.rows=4", "plan.probe=6", "plan.updates=1",
    ]  # fmt: skip
    told = planned(monkeypatch, "iterate", *keys)
    assert told["trees"]["expected"] == 32 and told["attempts"]["expected"] == 6 * 20 * 2  # sampled and greedy
    assert told["pairs"]["low"] <= told["pairs"]["expected"] <= told["pairs"]["high"]
    parts = ("build_prefs", "evaluate", "train_sft", "train_dpo")
    assert told["seconds"]["expected"] == pytest.approx(sum(told[f"seconds_{name}"]["expected"] for name in parts))
    assert main(command("iterate"), [*keys, "plan.expect=true", f"run_dir={tmp_path}/run"]) == 0
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["expected"]
    assert found["trees"]["ratio"] == 1 and found["attempts"]["ratio"] == 1
    assert 0.5 < found["tokens_sampled"]["ratio"] < 2 and found["updates"]["actual"] >= 4
    assert found["seconds"]["actual"] == pytest.approx(sum(found[f"seconds_{name}"]["actual"] for name in parts))
