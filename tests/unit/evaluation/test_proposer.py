"""What a proposal is rewarded with: by the solver's success, shared by copies, and never 0 where nobody tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import ScriptedPlayer, call
from offline_agent.errors import ConfigError
from offline_agent.evaluation.proposer import Learnability, pay
from offline_agent.evaluation.task_sources import load_source
from offline_agent.rollouts.attempts import Known
from offline_agent.store.files import write_json


def _task(target: int) -> dict[str, Any]:
    return {"numbers": [2, 3, 10], "target": target}


def test_rewards_and_the_verdicts_that_follow(tmp_path: Path) -> None:
    names = {"half": 60, "seldom": 61, "never": 62, "always": 63, "untried": 64, "twice": 65}
    proposed: dict[str, Any] = {
        "tasks": [{"task_id": name, "args": _task(target), "proof": "expert"} for name, target in names.items()],
        "dropped": [{"task_id": "x", "args": _task(65), "proof": "known"},
                    {"task_id": "7", "args": None, "proof": "no dict"}],
    }  # fmt: skip
    known = {"half": Known(4, 8), "seldom": Known(1, 8), "never": Known(0, 8), "always": Known(8, 8),
             "untried": Known(0, 0), "twice": Known(4, 8)}  # fmt: skip
    pay(proposed, known)
    found = {one["task_id"]: (one["reward"], one["learnt"]) for one in (*proposed["tasks"], *proposed["dropped"])}
    assert found == {
        "half": (1.0, True), "seldom": (0.25, True), "never": (0.0, False), "always": (0.0, False),
        "untried": (None, False), "twice": (0.5, True), "x": (0.0, False), "7": (0.0, False),
    }  # fmt: skip
    assert proposed["rewards"] == {"rewarded": 5, "mean": 0.35, "learnt": 3}
    assert all(one["why"] for one in (*proposed["tasks"], *proposed["dropped"]))
    judge = Learnability(str(write_json(tmp_path / "proposed.json", proposed)))
    spec = EnvSpec.load("propose:countdown", {"n": 3})
    player, task = ScriptedPlayer(spec, 1), next(spec.tasks("train"))

    def verdict(arguments: dict[str, Any]) -> Any:
        return judge(player.run(task, [call("propose", arguments)]))

    assert (verdict(_task(60)).score, verdict(_task(60)).success) == (1.0, True)
    assert verdict({"numbers": [2, 3, 10], "target": 61.0}).score == 0.25  # as it was executed
    assert verdict(_task(62)).success is False and "0 of 8" in verdict(_task(62)).evidence["why"]
    assert verdict(_task(64)).score is None and "no attempt" in verdict(_task(64)).error
    assert verdict(_task(70)).score is None and "not looked at" in verdict(_task(70)).error
    assert verdict({"target": 60}).success is False  # no call that proposes a task


def test_below_the_median_nothing_is_learnt() -> None:
    proposed = {"tasks": [{"task_id": str(n), "args": _task(60 + n)} for n in range(3)], "dropped": []}
    pay(proposed, {"0": Known(1, 8), "1": Known(2, 8), "2": Known(3, 8)})
    assert [one["learnt"] for one in proposed["tasks"]] == [False, True, True]


def test_an_environment_whose_tasks_cannot_be_proposed_is_refused_before_the_loop() -> None:
    with pytest.raises(ConfigError, match="names alone"):
        load_source("proposer", EnvSpec.load("tests.unit.envs.test_propose:Named"))
