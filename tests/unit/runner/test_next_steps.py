"""Printed commands run as they are: with the environment, its arguments and the judge, quoted for a shell."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.config.loading import load
from offline_agent.runner.next_steps import (
    another_environment,
    command,
    environment_keys,
    evaluation,
    keys_of_runs,
    typed,
)

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


def test_a_model_of_another_environment_is_told(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    model = str(tmp_path / "model")
    shop = load(EvaluateConfig).resolved()
    assert another_environment(model, shop) is None and another_environment(None, shop) is None
    (tmp_path / "summary.json").write_text(json.dumps({"environment_keys": ["env=my:Env", "env.level=2"]}))
    told = another_environment(model, shop)
    assert told is not None and "trained for env=my:Env" in told and told.endswith("add env=my:Env env.level=2")
    assert another_environment(model, load(EvaluateConfig, overrides=["env=my:Env"]).resolved()) is None


def test_a_folder_that_was_removed_under_a_command_costs_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Alone catches a training that fails at its last line, since its working directory is gone."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert command("evaluate", ["env=shop"]).startswith("python -m offline_agent.pipelines.evaluate ")
