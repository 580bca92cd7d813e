"""The environments that run code: searched, mined, trained on; the same trees for any number of workers; a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_agent.pipelines import evaluate
from offline_agent.pipelines.entry import main
from offline_agent.sandbox import Sandbox
from tests.helpers.code_families import assert_learns, assert_same_trees

HOSTILE = "offline_agent_environments.tests.hostile_policy:HostilePolicy"


@pytest.mark.parametrize("name", ["code", "repo"])
def test_it_is_searched_mined_and_trained_on(name: str, tmp_path: Path) -> None:
    assert_learns(name, tmp_path)


def test_trees_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    assert_same_trees("code", tmp_path)


def test_a_model_is_refused_where_the_sandbox_is_weaker_than_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from offline_agent.sandbox import trust

    weak = Sandbox("limits")
    monkeypatch.setattr(trust, "shared", lambda: weak)
    keys = ["env=math", "tasks.n=1", "attempts=1", "greedy=false", "max_steps=1", "tracking.uri=null",
            f"run_dir={tmp_path / 'run'}", f"policy={HOSTILE}"]  # fmt: skip
    assert main(evaluate.COMMAND, keys) == 2
    told = capsys.readouterr().err
    assert "sandbox.allow" in told and "apt-get install bubblewrap" in told
    assert not (tmp_path / "run").exists()
    assert main(evaluate.COMMAND, [*keys, "sandbox.allow=limits"]) == 0
