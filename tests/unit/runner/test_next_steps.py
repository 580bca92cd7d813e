"""Printed commands run as they are: with the environment, its arguments and the judge, quoted for a shell."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.config.import_logs import ImportLogsConfig
from offline_agent.config.loading import load
from offline_agent.report import build_prefs as searched
from offline_agent.report import import_logs as logged
from offline_agent.runner.next_steps import (
    command,
    environment_keys,
    evaluation,
    keys_of_runs,
    made_by,
    typed,
)
from offline_agent.store.manifest import data_policy

GIVEN = [
    "env=my.module:Env", "env.level=3", "env.words=[a b,c]", "env.isolate=process", "judge=f1", "judge.threshold=0.8",
]  # fmt: skip


def test_the_keys_of_a_run_give_the_same_environment_and_judge_again() -> None:
    config = load(BuildPrefsConfig, overrides=GIVEN)
    typed = shlex.split(shlex.join(environment_keys(config.resolved())))
    again = load(EvaluateConfig, overrides=typed)
    assert again.env == config.env and again.judge == config.judge
    assert environment_keys(load(BuildPrefsConfig).resolved()) == ["env=shop"]
    assert environment_keys({"optimizer": {}}) == []


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"])) | st.sampled_from(
    ["5", "null", "", "${x}", "\\${x}", "\\\\${x}", "a: b", "[a", "'q'", '"q"', " a ", "~", "1e5", "#c", "a #b",
     "{a: 1}"]
)  # fmt: skip
VALUES = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=4,
)


@given(VALUES)
@example("${oc.env:HOME}")
def test_a_typed_value_is_read_as_the_same_value(value: object) -> None:
    config = load(BuildPrefsConfig, overrides=["env=my:Env", f"env.argument={typed(value)}"])
    assert config.env.model_extra == {"argument": value}


def test_a_trainer_takes_the_environment_from_the_run_that_it_reads(tmp_path: Path) -> None:
    for name, config in (("files", {}), ("searched", {"env": {"name": "babyai", "level": "GoToObj"}})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps({"config": config}))
    runs = [tmp_path / "nowhere", tmp_path / "files", tmp_path / "searched"]
    assert keys_of_runs(runs) == ["env=babyai", "env.level=GoToObj"]
    assert keys_of_runs(runs[:2]) == []


def test_the_evaluation_of_a_trained_model_names_its_environment(tmp_path: Path) -> None:
    line = evaluation(tmp_path / "a model", ["env=my:Env", 'env.words=["a", "b"]'])
    words = shlex.split(line.removeprefix("Next: "))
    assert words[1:3] == ["-m", "offline_agent.pipelines.evaluate"]
    assert words[3:] == ["env=my:Env", 'env.words=["a", "b"]', f"policy.model={tmp_path}/a model"]
    assert "their files do not name it" in evaluation(tmp_path, [])


def test_the_search_whose_policy_made_the_data_is_found_behind_a_second_judge(tmp_path: Path) -> None:
    search, logs, judged = (str(tmp_path / name) for name in ("search", "logs", "judged"))
    for path, manifest in (
        (search, {"command": "build_prefs", "config": {"policy": {"name": "random"}}}),
        (logs, {"command": "import_logs", "config": {}}),
        (judged, {"command": "rejudge", "config": {"source": search}}),
    ):
        Path(path).mkdir()
        (Path(path) / "manifest.json").write_text(json.dumps(manifest))
    assert made_by([logs, judged]) == search and made_by([logs, "nowhere"]) is None
    (tmp_path / "summary.json").write_text(json.dumps({"made_by": search}))
    assert data_policy(str(tmp_path / "search")) == search and data_policy("my/model") is data_policy(None) is None


def test_a_folder_that_was_removed_under_a_command_costs_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Alone catches a training that fails at its last line, since its working directory is gone."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert command("evaluate", ["env=shop"]).startswith("python -m offline_agent.pipelines.evaluate ")


def _parsed(text: str) -> set[str]:
    """Parse every printed command as its own program would; return their names."""
    lines = re.findall(r"-m offline_agent\.pipelines\.(\w+) (.*)", text)
    for name, arguments in lines:
        module = importlib.import_module(f"offline_agent.pipelines.{name}")
        if hasattr(module, "COMMAND"):
            load(module.COMMAND.config, overrides=shlex.split(arguments.replace("env=NAME", "env=shop")))
    return {name for name, _ in lines}


@pytest.mark.parametrize("policy", ["noisy", "oracle", "random", "server", "hf", "my:Policy"])
@pytest.mark.parametrize("logs", [False, True])
def test_every_printed_line_is_parsed_and_successes_lead_to_training(tmp_path: Path, policy: str, logs: bool) -> None:
    """Alone catches the successes of an expert or a server that lead nowhere, and lines that are refused."""
    summary = {
        "policy": policy, "model": None, "trajectories": 2, "filtered": 1, "pairs_total": 2, "offset": 0, "tasks": 2,
        "typed": {"env": "shop"}, "pairs": {"step": 1, "trajectory": 1},
        "environment_keys": ["env=shop", "env.isolate=none", "env.low=-1"],
    }  # fmt: skip
    path = tmp_path / "a run"
    steps = logged.next_steps if logs else searched.next_steps
    assert {"inspect", "train_sft"} <= _parsed("\n".join(steps(summary, path)))
    whole = "\n".join(steps({**summary, "pairs": {"trajectory": 2}}, path))
    assert "train_dpo" not in whole or "data.kinds=[trajectory]" in whole  # without it there is no pair to train on
    nothing = "\n".join(steps({**summary, "filtered": 0, "pairs_total": 0}, path))
    assert "train_sft" not in nothing and "pair=0" not in nothing
    assert logs or nothing.endswith("envs.conformance shop env.low=-1")


def test_a_run_of_logs_names_no_environment(tmp_path: Path) -> None:
    """Alone catches `env=none` of an import in the line of a training."""
    config = load(ImportLogsConfig, overrides=["source=log.jsonl", "judge=exact_match"])
    assert environment_keys(config.resolved()) == []
    assert _parsed(evaluation(tmp_path, [])) == {"evaluate"}
    replayed = load(ImportLogsConfig, overrides=["source=log.jsonl", "env=shop"])
    assert _parsed(evaluation(tmp_path, environment_keys(replayed.resolved()))) == {"evaluate"}
