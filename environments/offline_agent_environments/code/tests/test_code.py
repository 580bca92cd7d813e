"""The environment `code`: data files, what tools answer, attacks on the verdict; gold answers of it and of `math`."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec, ToolError
from offline_agent.errors import ConfigError
from offline_agent.records import Action, ToolCall
from offline_agent_environments.code import Code
from offline_agent_environments.code.data import read_file as read_code
from tests.helpers.attacks import NAME, ON_THE_VERDICT

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
FUNCTIONS = Path(__file__).parents[4] / "tests" / "data" / "functions.jsonl"  # rows of HumanEval's format
REAL = Path(os.environ.get("OFFLINE_AGENT_DATA", Path(__file__).parents[5] / "shared" / "data"))

pytestmark = pytest.mark.slow


def file_of(folder: Path, *rows: Mapping[str, Any]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_code(str(tmp_path / "absent.jsonl"), "env.path")
    (tmp_path / "x.jsonl").write_text("no json")
    with pytest.raises(ConfigError, match="line 1 is no JSON"):
        read_code(str(tmp_path / "x.jsonl"), "env.path")
    (tmp_path / "x.jsonl").write_text("")
    with pytest.raises(ConfigError, match="has no row"):
        read_code(str(tmp_path / "x.jsonl"), "env.path")
    with pytest.raises(ConfigError, match="HumanEval"):
        read_code(file_of(tmp_path, {"task_id": 1}), "env.path")


def played(env: Code, task: Mapping[str, Any], code: str) -> tuple[str, float | None]:
    env.reset(**task)
    env.write(code)
    told = env.run_tests()
    env.submit()
    return told, env.get_reward().score


def test_rows_of_human_eval_and_mbpp_are_posed_and_judged(tmp_path: Path) -> None:
    packed = tmp_path / "functions.jsonl.gz"
    packed.write_bytes(gzip.compress(FUNCTIONS.read_bytes()))
    mbpp = {
        "task_id": 7, "text": "Write a function that adds.", "code": "def add(a, b):\n    return a + b",
        "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"], "test_setup_code": "",
    }  # fmt: skip
    tasks = [*read_code(str(packed), "k"), *read_code(file_of(tmp_path, mbpp), "k")]
    assert len(tasks) == 7 and all(task["shown"] for task in tasks)
    for task in tasks:
        told, score = played(Code(), task, task["solution"])
        assert told.startswith("All ") and score == 1.0, (task["task_id"], told)
    told, score = played(Code(), tasks[-1], "def add(a, b):\n    return 0")
    assert "got 0" in told and score == 0.5
    assert played(Code(score="all"), tasks[-1], "def add(a, b):\n    return 0")[1] == 0.0


def test_a_program_that_was_not_submitted_scores_0_and_one_that_is_no_python_says_so() -> None:
    task = next(iter(Code.tasks("train")))
    env = Code()
    env.reset(**task)
    with pytest.raises(ToolError, match="write one first"):
        env.run_tests()
    assert "no Python" in env.write("def f(:")
    assert "SyntaxError" in env.run_tests()
    env.write(task["solution"])
    assert env.get_reward().score == 0.0


def test_the_environment_scores_an_attack_0_and_goes_on() -> None:
    spec = EnvSpec.load("code")
    task = next(iter(spec.tasks("train")))
    name = task.args["names"][0]
    episode = spec.open()
    for attack in ("its results equal everything", "writes passing results into every descriptor"):
        episode.reset(task)
        source = ON_THE_VERDICT[attack].replace(NAME, name)
        for call in (ToolCall("write", {"code": source}), ToolCall("run_tests", {}), ToolCall("submit", {})):
            result = episode.step(Action("", call=call))
            assert "All" not in str(result.observation)
        assert episode.verdict().score == 0.0
    episode.reset(task)
    for call in (ToolCall("write", {"code": task.args["solution"]}), ToolCall("submit", {})):
        episode.step(Action("", call=call))
    assert episode.verdict().score == 1.0


@pytest.mark.skipif(not (REAL / "gsm8k_test.jsonl").is_file(), reason=f"there are no real data sets in {REAL}")
def test_gold_answers_of_real_rows_score_1_and_wrong_ones_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from gold import measured, rows

    for name, path, tasks in rows(REAL):
        found = measured(EnvSpec.load(name), random.Random(1).sample(tasks, 4))
        assert found["gold_1"] == found["wrong_0"] == 4, (path, found["exceptions"], found["wrong_scored"])
