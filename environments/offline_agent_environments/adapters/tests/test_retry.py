"""Further attempts after a failed one: the lesson is an action, and failed attempts are not imitated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.errors import ConfigError
from offline_agent.pipelines import build_prefs
from offline_agent.pipelines.entry import main
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.records import Action, Task, ToolCall
from offline_agent.rendering.renderer import Renderer
from offline_agent.training.data.rows import load_trajectories
from offline_agent_environments.adapters.retry import AGAIN

NUMBERS = Task("t", "train", {"numbers": [2, 3, 10], "target": 60})
FAILS = [("combine", {"a": 2, "op": "+", "b": 3}), ("combine", {"a": 5, "op": "+", "b": 10})]
SOLVES = [("combine", {"a": 2, "op": "*", "b": 3}), ("combine", {"a": 6, "op": "*", "b": 10})]
LESSON = ("reflect", {"lesson": "multiply"})


def _episode(**args: Any) -> Any:
    episode = EnvSpec.load("retry:countdown", {"n": 3, **args}).open()
    episode.reset(NUMBERS)
    return episode


def _call(episode: Any, name: str, arguments: dict[str, Any]) -> Any:
    return episode.step(Action(name, call=ToolCall(name, arguments)))


@pytest.mark.parametrize(("name", "args"), [("countdown", {"n": 3, "tries": 3}), ("shop", {})])
def test_it_passes_the_conformance_suite(name: str, args: dict[str, Any]) -> None:
    report = check_environment(EnvSpec.load(f"retry:{name}", args), tasks=1)
    assert report.passed, report


def test_a_failed_attempt_is_followed_by_a_lesson_and_another() -> None:
    episode = _episode()
    assert "not over" in _call(episode, *LESSON).observation
    answers = [_call(episode, *one) for one in FAILS]
    assert not answers[-1].terminated and answers[-1].observation.endswith("the task then begins anew.")
    assert _call(episode, *SOLVES[0]).fault == "tool_error", "an attempt goes on after its end"
    assert _call(episode, *LESSON).observation == "left: 2 3 10 target 60"
    last = [_call(episode, *one) for one in SOLVES][-1]
    assert last.terminated and episode.verdict().success
    assert episode.verdict().evidence["attempt"] == 2


def test_the_last_failure_and_giving_up_end_the_episode() -> None:
    episode = _episode()
    for one in (*FAILS, LESSON):
        _call(episode, *one)
    assert [_call(episode, *one).terminated for one in FAILS] == [False, True]
    assert episode.verdict().success is False
    other = _episode()
    for one in FAILS:
        _call(other, *one)
    assert other.step(Action("I give up.", "I give up.")).terminated and other.verdict().success is False


def test_the_name_of_a_task_is_left_out_where_reset_takes_none() -> None:
    episode = EnvSpec.load("retry:tests.helpers.search:Paths").open()
    assert episode.reset(Task("t", "train", {"code": "123", "task_id": "t"})) == "The code is 123."


class Told:
    """Answers with objects; fails at once."""

    def reset(self) -> dict[str, bool]:
        self.terminated = False
        return {"ok": True}

    def stop(self) -> None:
        """End it."""
        self.terminated = True

    def get_reward(self) -> float:
        return 0.0


def test_what_is_no_text_is_shown_as_without_retry() -> None:
    episode = EnvSpec.load(f"retry:{__name__}:Told").open()
    assert episode.reset(Task("t", "train", {})) == '{"ok": true}'
    call = ToolCall("stop", {})
    assert episode.step(Action("stop", call=call)).observation == AGAIN


def test_an_environment_that_renews_its_history_is_refused() -> None:
    with pytest.raises(ConfigError, match="renews its history by itself"):
        EnvSpec.load("retry:parts:tests.helpers.search:Paths", {"turns": 2})


@pytest.mark.parametrize("tries", [1, "two", True])
def test_too_few_tries_are_refused(tries: Any) -> None:
    with pytest.raises(ConfigError, match="allowed: 2 or more"):
        EnvSpec.load("retry:countdown", {"tries": tries})


def test_only_the_lesson_and_the_attempt_after_it_are_learnt(tmp_path: Path) -> None:
    run = tmp_path / "run"
    keys = ("env=retry:countdown", "env.n=3", "policy=noisy", "policy.noise=0.7", "tasks.n=12", "search.simulations=8")
    more = (f"policy.tokenizer={DEFAULT_MODEL}", "filtered.per_task=6", "tracking.uri=null", f"run_dir={run}")
    assert main(build_prefs.COMMAND, [*keys, *more]) == 0
    renderer = Renderer(AutoTokenizer.from_pretrained(DEFAULT_MODEL))
    rows = pq.read_table(run / "filtered").to_pylist()
    retried = 0
    for row in rows:
        turns = [message for message in map(as_message, row["messages"]) if message["role"] == "assistant"]
        masked = zip(row["tokens_input_ids"], row["tokens_action_mask"], strict=True)
        lessons = sum("reflect" in str(turn) for turn in turns)
        assert renderer.decode([one for one, on in masked if on]).count("reflect") == min(lessons, 1)
        assert sum(turn.get("train") is False for turn in turns) == (2 + (lessons - 1) * 3 if lessons else 0)
        retried += lessons > 0
    assert retried, "no success after a failure"
    loaded, report = load_trajectories([str(run)], [], renderer, max_length=4096)
    assert len(loaded) == len(rows) and not report.left_out


def as_message(one: Any) -> Any:
    return json.loads(one) if isinstance(one, str) else one
