"""Environments served to Inspect, OpenEnv and verifiers, by the packages themselves: nothing is lost on the way."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.serving import OVER, Served
from offline_agent.errors import ConfigError
from offline_agent.pipelines import evaluate, export
from offline_agent.pipelines.entry import main
from offline_agent.records import Action, ToolCall
from tests.helpers.served import SCRIPTS

ROOT = Path(__file__).parents[2]
HELPERS = ROOT / "tests" / "helpers"
SCORER = """
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
from inspect_ai.solver import TaskState

@scorer(metrics=[mean()])
def calls() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=sum(len(said.tool_calls or ()) for said in state.messages if said.role == "assistant"))
    return score
"""


def interpreter(variable: str, package: str) -> str:
    """Return the interpreter that a variable names; skip the test where none is named."""
    if variable not in os.environ:
        pytest.skip(
            f"{package} wants an interpreter of its own: python -m venv V && V/bin/pip install "
            f"{package} psutil, then {variable}=V/bin/python"
        )
    return os.environ[variable]


def ran(folder: Path, *command: str) -> str:
    paths = os.pathsep.join(map(str, (ROOT, HELPERS, ROOT / "examples" / "verifiers_package")))
    env = {**os.environ, "PYTHONPATH": paths, "OPENAI_API_KEY": "none", "PRIME_API_KEY": "none"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def wanted() -> dict[str, tuple[list[str], float | None]]:
    """Return what an episode of this package shows for each script, and its score, by task."""
    out: dict[str, tuple[list[str], float | None]] = {}
    spec = EnvSpec.load("tests.helpers.served:Desk")
    for task, turns in zip(spec.tasks("test"), SCRIPTS.values(), strict=True):
        episode = spec.open()
        texts = [episode.reset(task)]
        for turn in turns:
            call = None if isinstance(turn, str) else ToolCall(*turn)
            texts.append(episode.step(Action(str(turn), call=call)).observation or "")
        assert episode.terminated
        out[task.task_id] = texts, episode.verdict().score
    assert [score for _, score in out.values()] == [1.0, 0.0, None, 2 / 6]
    return out


def test_a_session_plays_as_an_episode_does_inside_a_running_event_loop() -> None:
    async def played() -> None:
        served = Served("tests.helpers.served:Desk")
        for task, turns in zip(served.tasks, SCRIPTS.values(), strict=True):
            session = served.session(task)
            texts, score = wanted_of[task.task_id]
            for turn, text in zip(turns, texts[1:], strict=True):
                name, arguments = ("answer", {"text": turn}) if isinstance(turn, str) else turn
                assert not session.over and session.call_or_answer(name, arguments) == (text, text.startswith("Error"))
            assert session.over and session.judged().score == score and session.observation == texts[0]
            assert session.call_or_answer("add", {"n": 1}) == (OVER, True)
            session.close()
        short = Served("tests.helpers.served:Desk", max_steps=1).session(served.tasks[0])
        short.call("add", {"n": 1})
        assert short.over
        short.close()

    wanted_of = wanted()
    asyncio.run(played())
    with pytest.raises(ConfigError, match="no test task from number 9 on"):
        Served("tests.helpers.served:Desk", offset=9)


def test_inspect_plays_and_scores_as_this_package_does(tmp_path: Path) -> None:
    told = json.loads(ran(tmp_path, interpreter("INSPECT_PYTHON", "inspect_ai"), str(HELPERS / "served_inspect.py")))
    assert len(told["own"]) == 2 * len(SCRIPTS)
    for sample in told["own"]:
        texts, score = wanted()[sample["task"]]
        assert sample["texts"] == [text for text in texts if text] and sample["system"] == "Add up to the goal."
        if score is None:
            assert math.isnan(sample["reward"]) and math.isnan(sample["success"])
        else:
            assert sample["reward"] == pytest.approx(score) and sample["success"] == (score == 1)
    scores = {sample["task"]: sample["reward"] for sample in told["other"]}  # of a solver that ends with an answer
    assert scores["goal-3"] == 1 and scores["goal-4"] == scores["goal-6"] == 0


def test_inspect_scores_what_evaluate_played(tmp_path: Path) -> None:
    python = interpreter("INSPECT_PYTHON", "inspect_ai")
    run = str(tmp_path / "run")
    assert main(evaluate.COMMAND, ["env=countdown", "policy=random", "tasks.n=3", "attempts=2", f"run_dir={run}"]) == 0
    assert export.main([f"run_dir={run}", "format=inspect"]) == 0
    (tmp_path / "scorers.py").write_text(SCORER)
    log, scored = f"{run}-inspect/log.json", tmp_path / "scored.json"
    more = ("--scorer", "scorers.py@calls", "--action", "append", "--output-file", str(scored))
    ran(tmp_path, python, "-m", "inspect_ai", "score", log, *more)
    rows = pq.read_table(f"{run}/trajectories").to_pylist()
    samples = json.loads(scored.read_text())["samples"]
    told = [(one["id"], *(one["scores"][name]["value"] for name in ("success", "reward", "calls"))) for one in samples]
    assert sorted(told) == sorted((row["task_id"], row["success"], row["reward"], row["steps"]) for row in rows)


def test_openenv_serves_sessions_of_their_own(tmp_path: Path) -> None:
    python = interpreter("OPENENV_PYTHON", "openenv")
    sessions = json.loads(ran(tmp_path, python, str(HELPERS / "served_openenv.py")))
    assert sessions[-1]["tools"] == ["add", "take", "answer"] and len(sessions) == len(SCRIPTS)
    for told in sessions:
        texts, score = wanted()[told["task"]]
        assert told["texts"] == texts and told["done"]
        assert not any(told["paid"][:-1]) and told["paid"][-1] == (score if score is None else pytest.approx(score))
    package = ROOT / "examples" / "openenv_package"
    ran(package, python, "-m", "openenv.cli", "validate", ".", "--level", "static")
    ran(package, python, "-c", "from server.app import app; assert app.routes")


def test_verifiers_rolls_out_and_rewards(tmp_path: Path) -> None:
    python = interpreter("VERIFIERS_PYTHON", "verifiers")
    evaluate = str(Path(python).with_name("vf-eval"))
    keys = ("--no-push", "--no-rich", "--env.agent.runtime.type", "subprocess")
    for split in ("test", "train"):
        ran(tmp_path, evaluate, "served-verifiers", *keys, "--env.taskset.split", split, "-o", split)
    (traces,), (broken,) = (tmp_path.glob(f"{split}/*/traces.jsonl") for split in ("test", "train"))
    episodes = [json.loads(line) for line in traces.read_text().splitlines()]
    assert len(episodes) == len(SCRIPTS)
    (trace,) = json.loads(broken.read_text())["traces"]
    assert "take() raised OSError: the desk is on fire" in str(trace["errors"])  # and no reward of 0
    for episode in episodes:
        (trace,) = episode["traces"]
        texts, score = wanted()[episode["task"]["data"]["id"]]
        assert trace["info"] == {"texts": texts, "tools": ["add", "take", "answer"]}
        reward: dict[str, Any] = trace["rewards"]["verdict"]
        if score is None:
            assert "no score" in str(trace["errors"])
        else:
            assert reward["score"] == pytest.approx(score) and not trace["errors"]
    example = "import countdown_taskset as t; assert len(list(t.CountdownTaskset(t.CountdownConfig(n=3)))) == 3"
    ran(tmp_path, python, "-c", example)
