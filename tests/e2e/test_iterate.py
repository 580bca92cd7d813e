"""The loop over the real stages: what it leaves, that its model serves, and that kill -9 changes nothing."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import TrainingError
from offline_agent.launch import stages as _stages
from offline_agent.launch.stages import Stage
from offline_agent.pipelines.entry import main
from offline_agent.store.provenance import hash_path
from offline_agent.store.tables import rows
from tests.helpers import forked
from tests.helpers.bandit import ENV, QUIET, call, command, in_process, warm_started

ROOT = Path(__file__).parents[2]
KEYS = [
    ENV, QUIET, "policy.temperature=1", "iterations=2", "tasks.n=16", "search.simulations=8", "search.max_steps=1",
    "held_out.n=60", "held_out.attempts=1", "threads=1",
    "sft.optimizer.learning_rate=3e-4", "sft.optimizer.epochs=4", "sft.batch.rows=8", "dpo.enabled=true",
    "dpo.optimizer.learning_rate=1e-3", "dpo.optimizer.epochs=6", "dpo.batch.rows=8", "dpo.anchor.rows=4",
]  # fmt: skip


def loop(run_dir: Path, start: Path, *keys: str) -> int:
    return main(command("iterate"), [*KEYS, f"policy.model={start}", f"run_dir={run_dir}", *keys])


def summary(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "summary.json").read_text()))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_started(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, start: Path) -> Path:
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_stages, "_run", in_process)
        assert loop(run_dir, start) == 0
    return run_dir


def test_it_gets_better_and_says_by_how_much(whole: Path) -> None:
    told = summary(whole)
    assert 0.2 < told["start"]["mean"] < 0.7 < told["end"]["mean"]
    assert told["start"]["high"] < told["end"]["low"]
    first, second = told["iterations"]
    assert first["promoted"] and set(first["candidates"]) == {"train_sft", "train_dpo"}
    assert first["pairs_total"] > 0
    assert second["tasks"]["new"] >= 8
    assert told["model"]["hash"] == hash_path(whole / "model")


def test_every_stage_can_be_found_and_run_by_hand(whole: Path) -> None:
    names = {path.name for path in (whole / "iteration-1").iterdir()}
    stages = ["build_prefs", "train_sft", "train_dpo", "evaluate_incumbent", "evaluate_sft", "evaluate"]
    assert names >= {*stages, *(f"{name}.yaml" for name in stages), "tasks.jsonl", "held_out.jsonl"}
    for name in stages:
        manifest = json.loads((whole / "iteration-1" / name / "manifest.json").read_text())
        assert manifest["status"] == "done"
        assert manifest["config"]["tracking"]["parent"] == json.loads((whole / "manifest.json").read_text())["run_id"]
        before = hash_path(whole / "iteration-1" / name / "summary.json")
        if name == "build_prefs":  # the same command goes on with it, and there is nothing left to do
            assert main(command(name), ["--config", str(whole / "iteration-1" / f"{name}.yaml")]) == 0
            continue
        assert hash_path(whole / "iteration-1" / name / "summary.json") == before


def test_the_promoted_model_loads_with_transformers_and_serves(whole: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from offline_agent.envs.base import EnvSpec
    from offline_agent.policies.base import Proposals, ProposeRequest
    from offline_agent.policies.hf.policy import HFPolicy
    from offline_agent.records import Context

    model = AutoModelForCausalLM.from_pretrained(whole / "model")
    tokenizer = AutoTokenizer.from_pretrained(whole / "model")
    messages = [{"role": "user", "content": "Machine 7 has two arms, left and right."}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert model.generate(**ids, max_new_tokens=4).shape[1] > ids["input_ids"].shape[1]

    spec = EnvSpec.load("examples.bandit:Bandit")
    episode = spec.open()
    task = next(spec.tasks("test"))
    context = Context(task, episode.system_prompt, episode.tools.schemas, episode.reset(task))
    policy = HFPolicy(whole / "model")
    try:
        answer = policy.propose([ProposeRequest(context, tuple(range(20)), temperature=1.0)])[0]
    finally:
        policy.close()
    assert isinstance(answer, Proposals)
    calls = [action.call.name for action in answer.actions if action.call is not None]
    assert len(calls) > 15 and calls.count("right") > calls.count("left")


def _kill_in(run_dir: Path, start: Path, stage: str, updates: int) -> None:
    """Run the loop as a user does, and kill it with -9 when the stage has made so many updates."""
    arguments = [*KEYS, f"policy.model={start}", f"run_dir={run_dir}"]
    process = forked.Process([sys.executable, "-m", "offline_agent.pipelines.iterate", *arguments], cwd=ROOT)
    events = run_dir / stage / "events" / "0000.jsonl"
    while process.poll() is None and not (events.exists() and events.read_text().count('"update"') >= updates):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err


def test_killed_and_gone_on_with_it_ends_with_the_same_model(
    tmp_path: Path, whole: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, killed = tmp_path / "run", "iteration-0/train_dpo"

    def stopping(stage: Stage, *rest: Any) -> None:
        if stage.label == killed:
            raise TrainingError("stopped here")
        in_process(stage, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(_stages, "_run", stopping)
        assert loop(run_dir, start) == 1
    _kill_in(run_dir, start, killed, updates=3)
    assert json.loads((run_dir / killed / "manifest.json").read_text())["status"] == "running"
    monkeypatch.setattr(_stages, "_run", in_process)
    assert loop(run_dir, start) == 0
    one, other = summary(run_dir), summary(whole)
    assert one["model"]["hash"] == other["model"]["hash"] and hash_path(run_dir / "model") == one["model"]["hash"]
    for record in (*one["iterations"], *other["iterations"]):
        del record["seconds"], record["search_success"]
    assert one["iterations"] == other["iterations"]
    events = [json.loads(line) for line in (run_dir / "events" / "0000.jsonl").read_text().splitlines()[1:]]
    assert [event["iteration"] for event in events] == [0, 1]


def test_successes_of_other_runs_are_learnt_from(
    start: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stages, "_run", in_process)
    other = whole / "iteration-0" / "build_prefs"
    keys = (*KEYS[4:], "iterations=1", "held_out.n=20", "dpo.enabled=false", "sft.begin=start", f"buffer=[{other}]")
    assert loop(tmp_path / "later", start, *keys) == 0
    read = json.loads((tmp_path / "later" / "iteration-0" / "train_sft" / "manifest.json").read_text())["config"]
    assert str(other) in read["data"]["runs"]
    assert loop(tmp_path / "none", start, f"buffer=[{tmp_path}]") == 2


def test_the_queries_of_the_page_on_tracking_find_curve_stages_and_promoted_model(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(_stages, "_run", in_process)
    monkeypatch.setattr(sys, "executable", str(forked.python()))  # MLflow is imported once for all stages
    uri, run_dir = "sqlite:///mlflow.db", tmp_path / "run"
    assert loop(run_dir, start, "iterations=1", "dpo.enabled=false", "report=false", f"tracking.uri={uri}") == 0
    page, found = (ROOT / "docs" / "tracking.md").read_text(encoding="utf-8"), {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, found)
    tuned, told = str(run_dir / "iteration-0" / "train_sft" / "model"), summary(run_dir)
    assert found["curve"] == [(0, told["end"]["mean"])] and told["iterations"][0]["promoted"] == "train_sft"
    assert found["models"].pop("iteration-0/train_sft") == (str(start), tuned)
    assert set(found["models"]) == {f"iteration-0/{name}" for name in ("build_prefs", "evaluate", "evaluate_incumbent")}
    assert found["folder"] == tuned and found["maker"] == "iteration-0/train_sft"


def test_the_policy_proposes_tasks_and_learns_from_those_that_were_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = ["scratch.layers=2", "scratch.hidden_size=64", "scratch.heads=2", "scratch.key_value_heads=2",
             "scratch.vocabulary=320", "scratch.max_positions=1024", "threads=1", "batch.rows=8"]  # fmt: skip
    files = []
    luck = ["env.right=0.6", "env.left=0.6"]  # nobody can know which arm pays, so about half of the pulls succeed
    for number, env in enumerate((ENV, ENV.replace("=", "=propose:"))):
        keys = [env, *luck, f"demonstrations.noise=[{float(not number)}]", "tasks.n=90", "optimizer.max_updates=1"]
        call("train_sft", *keys, *shape, f"run_dir={tmp_path / str(number)}")
        files += [str(file) for file in (tmp_path / str(number) / "demonstrations").glob("*.parquet")]
    learn = [f"data.files=[{','.join(files)}]", "optimizer.epochs=10", "optimizer.learning_rate=5e-3"]
    call("train_sft", *learn, *shape, f"run_dir={tmp_path / 'warm'}")
    keys = [*luck, "curriculum.source=proposer", "curriculum.new_share=1", "iterations=1", "dpo.enabled=false"]
    keys += ["held_out.n=10", "held_out.pool=20"]
    start, runs = tmp_path / "warm" / "model", [tmp_path / "whole", tmp_path / "stopped"]
    monkeypatch.setattr(_stages, "_run", in_process)
    assert loop(runs[0], start, *keys) == 0
    first = runs[0] / "iteration-0"
    told = json.loads((first / "proposed.json").read_text())
    learnt = [one["args"] for one in told["tasks"] if one["learnt"]]
    assert learnt and all(one["why"] for one in (*told["tasks"], *told["dropped"]))
    calls = [message["tool_calls"][0]["function"] for row in rows(first / "reward", "filtered")
             for message in row["messages"] if message.get("tool_calls")]  # fmt: skip
    assert {one["name"] for one in calls} == {"propose"}
    assert {one["arguments"]["machine"] for one in calls} == {args["machine"] for args in learnt}
    config = json.loads((first / "train_sft" / "manifest.json").read_text())["config"]
    assert [Path(run).name for run in config["data"]["runs"]] == ["reward", "build_prefs"]
    assert summary(runs[0])["iterations"][0]["proposed"]["rewards"]["learnt"] == len(learnt)

    def stopping(stage: Stage, *rest: Any) -> None:
        if stage.name == "reward":
            raise TrainingError("stopped here")
        in_process(stage, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(_stages, "_run", stopping)
        assert loop(runs[1], start, *keys) == 1
    assert loop(runs[1], start, *keys) == 0
    assert hash_path(runs[1] / "model") == hash_path(runs[0] / "model")
    assert hash_path(runs[1] / "iteration-0" / "proposed.json") == hash_path(first / "proposed.json")
