from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.iterate import IterateConfig
from offline_agent.config.loading import load
from offline_agent.errors import DataError, TrainingError
from offline_agent.launch.loop_stages import LoopStages, Model, place_model
from offline_agent.launch.stages import Stage, is_done, portable, run_stage
from tests.helpers.tiny_pipeline import Tiny

ROOT = Path(__file__).parents[3]
PIPELINE = ROOT / "tests" / "helpers" / "tiny_pipeline.py"
AGAIN = "give the same command again"


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    command = property(lambda stage: [sys.executable, str(PIPELINE), "--config", str(stage.file)])
    monkeypatch.setattr(Stage, "command", command)


def tiny(folder: Path, **keys: Any) -> Stage:
    folder.mkdir(exist_ok=True)
    config = load(
        Tiny, None, [f"{name}={value}" for name, value in {"tracking.uri": "null", **keys}.items()]
    )
    return Stage("count", "tiny", config.model_copy(update={"run_dir": str(folder / "count")}))


def test_a_stage_runs_tells_and_leaves_its_configuration(tmp_path: Path) -> None:
    said: list[str] = []
    stage = tiny(tmp_path / "iteration-0", count=4)
    summary = run_stage(stage, said.append, AGAIN)
    assert summary["counted"] == 4 and is_done(stage)
    assert said and all(line.startswith("iteration-0/count: ") for line in said)
    assert any("writing to" in line for line in said) and not any("tiny:" in line for line in said)
    log = (tmp_path / "iteration-0" / "count.log").read_text()
    assert "counted 4" in log and "writing to" in log  # both outputs
    first, *_ = stage.file.read_text().splitlines()
    assert first == f"# python -m offline_agent.pipelines.tiny --config {stage.file}"
    assert load(Tiny, stage.file) == stage.config


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    stage = tiny(tmp_path, count=4)
    run_stage(stage, print, AGAIN)
    before = (stage.path / "manifest.json").read_bytes()
    said: list[str] = []
    assert run_stage(stage, said.append, AGAIN)["counted"] == 4
    assert not said and (stage.path / "manifest.json").read_bytes() == before
    assert is_done(tiny(tmp_path, count=4, **{"tracking.experiment": "other"}))  # a key that may differ
    assert not is_done(tiny(tmp_path, count=5)) and not is_done(tiny(tmp_path / "elsewhere", count=4))
    with pytest.raises(TrainingError, match="count: the run has 4, asked for 5"):
        run_stage(tiny(tmp_path, count=5), said.append, AGAIN)


def test_a_summary_that_is_gone_is_named(tmp_path: Path) -> None:
    stage = tiny(tmp_path)
    run_stage(stage, print, AGAIN)
    (stage.path / "summary.json").unlink()
    with pytest.raises(DataError, match="summary.json.*Remove"):
        run_stage(stage, print, AGAIN)


def test_a_failure_says_what_the_stage_said_and_how_to_go_on(tmp_path: Path) -> None:
    stage = tiny(tmp_path, fail="data")
    with pytest.raises(TrainingError) as caught:
        run_stage(stage, lambda line: None, AGAIN)
    said = str(caught.value)
    for part in ("count ended with status 1", "a/file: broken, mend it", "count.log", AGAIN, f"--config {stage.file}"):
        assert part in said
    for _ in range(2):
        with pytest.raises(TrainingError):
            run_stage(stage, lambda line: None, AGAIN)
    assert run_stage(stage, lambda line: None, AGAIN)["counted"] == 3  # it went on each time


LOOP = """
import sys, signal
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.unit.launch.test_stages import PIPELINE, tiny
from offline_agent.launch import stages
from offline_agent.runner.signals import signals
stages.Stage.command = property(lambda stage: [sys.executable, str(PIPELINE), "--config", str(stage.file)])
with signals():
    print(stages.run_stage(tiny(Path({folder!r}), count=20, pause=0.3), lambda line: None, "again"))
"""


def _loop(folder: Path) -> subprocess.Popen[str]:
    script = LOOP.format(root=str(ROOT), folder=str(folder))
    return subprocess.Popen([sys.executable, "-c", script], text=True, stdout=-1, stderr=-1)


def _events(folder: Path) -> Path:
    return folder / "count" / "events" / "0000.jsonl"


def _begun(folder: Path, process: subprocess.Popen[str], lines: int = 3) -> None:
    while process.poll() is None and not (_events(folder).exists() and len(_events(folder).open().readlines()) > lines):
        time.sleep(0.02)


def _alive(folder: Path) -> bool:
    with open(folder / "count" / ".lock") as lock:
        pid = int(lock.read().split()[1])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_stage_which_ends_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    process = _loop(tmp_path)
    _begun(tmp_path, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert "Stopped: " in err, err
    assert json.loads((tmp_path / "count" / "manifest.json").read_text())["status"] == "failed"
    assert "Stopped: " in json.loads((tmp_path / "count" / "manifest.json").read_text())["error"]
    assert not _alive(tmp_path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems let the stage end by itself")
def test_a_stage_does_not_outlive_a_loop_that_was_killed(tmp_path: Path) -> None:
    process = _loop(tmp_path)
    _begun(tmp_path, process)
    process.kill()
    process.communicate()
    for _ in range(100):
        if not _alive(tmp_path):
            break
        time.sleep(0.05)
    assert not _alive(tmp_path)
    stage = tiny(tmp_path, count=20, pause=0.3)
    assert not is_done(stage)


def test_secrets_are_not_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["env.api_key=very-secret", "tracking.uri=http://me:my-word@host:5000", "env.note='costs \\${5}'",
            "env.password=12", "env.headers={X-Key: abc}"]  # fmt: skip
    config = load(BuildPrefsConfig, None, keys)
    text, secrets = portable(config)
    assert "very-secret" not in text and "my-word" not in text and len(secrets) == 4
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "c.yaml").write_text(text)
    assert load(BuildPrefsConfig, tmp_path / "c.yaml") == config


def plan(folder: Path, *keys: str) -> LoopStages:
    return LoopStages(load(IterateConfig, None, keys), folder, "parent-id")


def test_every_stage_gets_what_the_loop_was_told(tmp_path: Path) -> None:
    keys = ["env=math", "env.seed=3", "policy.temperature=0.9", "policy.chat_template=qwen", "sft.per_task=2",
            "dpo.enabled=true", "dpo.loss.beta=0.3", "dpo.batch.rows=7", "lora.rank=4", "threads=1", "dtype=mixed",
            "search.max_steps=9", "held_out.attempts=3",
            "limits.step_seconds=5", "tracking.experiment=x", "reward.format=0.1"]  # fmt: skip
    made = plan(tmp_path, *keys)
    model = Model("iteration-0/train_dpo", str(tmp_path))
    build = made.build_prefs(1, model, tmp_path / "tasks.jsonl").config
    assert build.audit == "off" and made.build_prefs(0, model, tmp_path / "tasks.jsonl").config.audit == "cheap"
    assert build.env.given() == {"seed": 3} and build.tasks.file == str(tmp_path / "tasks.jsonl")
    assert build.tasks.n is None and build.policy.model == str(tmp_path) and build.policy.temperature == 0.9
    sft = made.train_sft(1, model, [tmp_path / "b", tmp_path / "a"]).config
    assert sft.data.runs == (str(tmp_path / "b"), str(tmp_path / "a")) and sft.data.per_task == 2
    assert sft.model.chat_template == "qwen" and sft.lora.rank == 4 and sft.threads == 1 and sft.model.dtype == "mixed"
    dpo = made.train_dpo(1, model, tmp_path / "b", [tmp_path / "b"]).config
    assert dpo.dpo.beta == 0.3 and dpo.batch.rows == 7 and dpo.data.runs == (str(tmp_path / "b"),)
    assert dpo.anchor.runs == (str(tmp_path / "b"),) and dpo.anchor.rows == 8
    assert made.train_dpo(1, model, tmp_path, []).config.anchor.rows == 0
    judged = made.evaluate(1, "evaluate", model, tmp_path / "held_out.jsonl").config
    assert (judged.tasks.n, judged.tasks.file) == (None, str(tmp_path / "held_out.jsonl"))
    assert (judged.attempts, judged.max_steps, judged.tasks.split) == (3, 9, "validation")
    assert judged.against.run is None and judged.limits.step_seconds == 5
    assert build.reward.model_extra == {"format": 0.1}
    for config in (build, sft, dpo, judged):
        assert config.tracking.parent == "parent-id" and config.tracking.experiment == "x"
        assert Path(config.run_dir or "").parent == tmp_path / "iteration-1" and 0 <= config.seed < 2**31
        again = tmp_path / "again.yaml"
        again.write_text(portable(config)[0])
        assert load(type(config), again) == config


def test_a_model_that_judges_itself_is_the_one_that_is_searched_and_never_judges_at_the_gate(tmp_path: Path) -> None:
    made = plan(tmp_path, "judge=hybrid", "judge.judge={name: llm, rubric: r.yaml, path: self}",
                "held_out.judge=environment")  # fmt: skip
    searched, trained = (tmp_path / name for name in ("searched", "trained"))
    for folder in (searched, trained):
        folder.mkdir()
    tasks = tmp_path / "t.jsonl"
    one, other = Model("start", str(searched)), Model("iteration-1/train_dpo", str(trained))
    build = made.build_prefs(1, one, tasks).config
    for config in (build, made.train_sft(1, one, []).config):
        assert config.judge.name == "hybrid" and config.judge.model_extra["judge"]["path"] == str(searched)
    assert made.build_prefs(2, other, tasks).config.judge.model_extra["judge"]["path"] == str(trained)
    for model in (one, other):
        judged = made.evaluate(1, "evaluate", model, tasks).config
        assert judged.judge.name == "environment" and not judged.judge.model_extra
    same = plan(tmp_path, "judge=f1").evaluate(1, "evaluate", one, tasks).config
    assert same.judge.name == "f1", "by default the judge of the searches"


def test_seeds_differ_but_for_evaluations_of_one_iteration(tmp_path: Path) -> None:
    made, model = plan(tmp_path, "seed=5"), Model("start", None)
    seeds = {made.seed(i, what) for i in range(3) for what in ("build_prefs", "train_sft", "train_dpo", "gate")}
    assert len(seeds) == 12
    names, file = ("evaluate_incumbent", "evaluate_sft", "evaluate"), tmp_path / "held_out.jsonl"
    evaluations = [{made.evaluate(i, name, model, file).config.seed for name in names} for i in range(3)]
    assert [len(each) for each in evaluations] == [1, 1, 1] and len(set.union(*evaluations)) == 3


def test_a_model_is_replaced_whole(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "adapter").mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(name)
        (tmp_path / name / "adapter" / name).write_text(name)
        (tmp_path / name / ".hidden").write_text(name)
    target = tmp_path / "model"
    for name in ("one", "two"):
        (tmp_path / ".model.new").mkdir()  # left by one that was killed
        place_model(tmp_path / name, target)
        assert sorted(f.relative_to(target).as_posix() for f in target.rglob("*") if f.is_file()) == [
            f"adapter/{name}", "config.json",
        ]  # fmt: skip
        assert (target / "config.json").read_text() == name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "one", "two"]
    place_model(tmp_path / "one", target, template="{{ text }}")
    assert (target / "chat_template.jinja").read_text() == "{{ text }}"
