"""Judges as a configuration names them: functions, classes, verifiers, compositions; and episodes that ask one."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.shop import Shop
from offline_agent.errors import ConfigError
from offline_agent.judges.judge import Judge, make_judge
from offline_agent.judges.verifiers import verifier
from offline_agent.records import Action, Context, Step, Task, ToolCall, Trajectory, Verdict

HERE = "tests.unit.judges.test_judge:"
TASK = Task("t", "train", {"question": "6 times 7?", "gold": "42", "solution": ["42", "forty-two"]})
OWN = Verdict(0.5, False, "env", evidence={"rows": [[1, "a"]]})


def played(*turns: str | ToolCall, observation: str = "[[1, \"a\"]]", own: Verdict | None = OWN) -> Trajectory:
    """Return a trajectory of calls, and answers in words."""
    context, steps = Context(TASK, "", (), "6 times 7?"), []
    for turn in turns:
        action = Action(turn, turn) if isinstance(turn, str) else Action(turn.name, call=turn)
        answer = None if isinstance(turn, str) else observation
        steps.append(Step(action, action.text, answer))
        context = context.child(action, answer)
    return Trajectory(context, tuple(steps), own, True, False, "rollout")


def lenient(trajectory: Trajectory, least: float = 0.5) -> bool:
    """Judge by the environment's score."""
    assert trajectory.verdict is not None and trajectory.verdict.score is not None
    return trajectory.verdict.score >= least


class Counting:
    """Judges by the number of steps; noisy."""

    version = "3"
    deterministic = False

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, trajectory: Trajectory) -> float:
        return min(1.0, len(trajectory.steps) / self.most)


def returns(trajectory: Trajectory, what: str) -> Any:
    """Return something that is or is no verdict."""
    odd = Verdict(1.0, True, "o", "2", {"a": {1}})
    return {"none": None, "nan": float("nan"), "text": "good", "two": 2, "odd": odd}[what]


def made(name: str, **args: Any) -> Judge:
    judge = make_judge(name, args)
    assert judge is not None
    return judge


def test_a_function_a_class_and_their_arguments() -> None:
    assert made(HERE + "lenient")(played("42")) == Verdict(1.0, True, HERE + "lenient")
    assert made(HERE + "lenient", least=0.6)(played("42")).success is False
    counting = made(HERE + "Counting", most=4)
    assert counting(played("42")) == Verdict(0.25, False, HERE + "Counting", "3") and not counting.deterministic
    assert counting.identity == {"name": HERE + "Counting", "version": "3", "args": {"most": 4}}
    assert make_judge("environment", {}) is None


@pytest.mark.parametrize(("what", "error"), [("none", "returned None"), ("nan", "in [0, 1]"), ("two", "in [0, 1]"),
                                             ("text", "ValueError")])  # fmt: skip
def test_what_is_no_score_is_unscored_and_never_0(what: str, error: str) -> None:
    verdict = made(HERE + "returns", what=what)(played("42"))
    assert verdict.score is None and verdict.success is None and error in (verdict.error or "")


def test_an_exception_is_unscored_with_its_error() -> None:
    verdict = made(HERE + "returns", what="unknown")(played("42"))
    assert verdict.score is None and "KeyError: 'unknown'" in (verdict.error or "")


def test_a_verdict_keeps_its_name_and_its_evidence_becomes_json() -> None:
    assert made(HERE + "returns", what="odd")(played("42")) == Verdict(1.0, True, "o", "2", {"a": "{1}"})


@pytest.mark.parametrize(
    ("name", "args", "faults"),
    [
        ("exact_mach", {}, ["Did you mean 'exact_match'?"]),
        (HERE + "lenien", {}, ["Did you mean 'lenient'?"]),
        (HERE + "TASK", {}, ["is a Task; a judge is called as judge(trajectory)"]),
        (HERE + "lenient", {"last": 1, "least": "x"}, ["judge.last: lenient takes no such", "judge.least: got 'x'"]),
        (HERE + "Counting", {}, ["judge.most: Counting needs this"]),
        ("f1", {"treshold": 1.0, "produced": "anser", "columns": {"gld": "gold"}},
         ["Did you mean 'threshold'?", "Did you mean 'answer'?", "Did you mean 'gold'?"]),
        ("all_of", {"judges": ["environment", "f2", {"threshold": 1}]}, ["judge.judges.1: got 'f2'", "judge.judges.2"]),
        ("all_of", {"judges": []}, ["at least one judge"]),
        ("mean_of", {"judges": ["environment"], "weights": [1, 2]}, ["judge.weights: got [1, 2], allowed: 1 numbers"]),
    ],
)  # fmt: skip
def test_what_cannot_judge_is_refused_with_every_fault(name: str, args: dict[str, Any], faults: Sequence[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_judge(name, args)
    assert len(caught.value.faults) == len(faults)
    for fault, said in zip(caught.value.faults, faults, strict=True):
        assert said in fault


def numbers(trajectory: Trajectory) -> Verdict:
    """Judge with NumPy's numbers."""
    return Verdict(np.float32(0.5), np.bool_(False), "numbers")  # type: ignore[arg-type]


def test_a_verdict_of_numpy_can_be_written() -> None:
    verdict = made(HERE + "numbers")(played("42"))
    assert json.dumps([verdict.score, verdict.success]) == "[0.5, false]"


@verifier
def guess(produced: str) -> bool:
    """Judge at random, at a cost."""
    return random.random() < 0.5


guess.deterministic, guess.costly = False, True  # type: ignore[attr-defined]


def test_a_verifier_may_say_that_it_is_noisy_and_costly() -> None:
    judge = made(HERE + "guess")
    assert not judge.deterministic and judge.costly


def test_verifiers_take_their_parameters_from_trajectory_and_task() -> None:
    judge = made("exact_match")
    judge.check(TASK)
    assert judge(played(ToolCall("look", {}), "The 42.")).success is True
    assert judge(played(ToolCall("look", {}))).score == 0.0 == judge(played()).score
    several = made("exact_match", columns={"gold": "solution"})
    assert several(played("Forty-two")).success is True
    assert made("exact_match", gold="43")(played("43")).success is True
    assert made("exact_match", produced="call.text")(played(ToolCall("say", {"text": "42"}), "no")).success is True
    for produced in ("observation", "evidence.rows"):
        rows = made("rows", produced=produced, wanted=[[1, "a"]])
        assert rows(played(ToolCall("run", {}), "done")).success is True
    tests = made("unit_tests", tests=["assert f() == 1"])
    assert tests(played("def f(): return 1")).success is True


def test_a_column_that_the_task_lacks_is_found_before_anything_runs() -> None:
    judge = made("exact_match", columns={"gold": "answer"})
    with pytest.raises(ConfigError, match=r"no column 'answer', only question, gold, solution; set .*columns=\{gold"):
        judge.check(TASK)
    assert "no column 'answer'" in (judge(played("42")).error or "")
    with pytest.raises(ConfigError, match="no column"):
        made("all_of", judges=["environment", {"name": "rows"}]).check(TASK)


def test_compositions() -> None:
    right, entry = played("42"), {"name": HERE + "lenient", "least": 0.6}
    both, any_, mean = (made(name, judges=["exact_match", entry]) for name in ("all_of", "any_of", "mean_of"))
    assert (both(right).score, both(right).success) == (0.0, False) and any_(right).success is True
    assert mean(right).score == 0.5 and [one["score"] for one in mean(right).evidence["judges"]] == [1.0, 0.0]
    weighted = made("mean_of", judges=["environment", "exact_match"], weights=[1, 3], threshold=0.85)
    assert weighted(right) .score == pytest.approx(0.875) and weighted(right).success is True
    assert any_(played("42", own=Verdict(None, None, "env", error="dead"))).score is None
    assert not made("all_of", judges=["exact_match", {"name": HERE + "Counting", "most": 1}]).deterministic


def _steps(episode: Any) -> Verdict:
    episode.step(Action("", call=ToolCall("search", {"query": "red lamp"})))
    return episode.verdict()


@pytest.mark.parametrize("isolated", [False, True])
def test_an_episode_shows_its_history_to_the_judge_through_copies_and_resets(isolated: bool) -> None:
    spec = EnvSpec.load("shop", judge=make_judge(HERE + "Counting", {"most": 4}), isolated=isolated)
    assert spec.identity["judge"]["args"] == {"most": 4} and not spec.deterministic_verifier
    task = next(spec.tasks("train"))
    episode = spec.open()
    assert episode.reset(task) and episode.verdict().score == 0.0
    assert _steps(episode).score == 0.25
    twin = episode.copy()
    assert _steps(twin).score == 0.5 and _steps(twin).score == 0.75 and episode.verdict().score == 0.25
    assert episode.fingerprint() != twin.fingerprint() or episode.fingerprint() is not None
    assert twin.reset(task) and twin.verdict().score == 0.0
    episode.close()
    twin.close()


def test_without_a_judge_the_environment_speaks_for_itself() -> None:
    assert "judge" not in EnvSpec(Shop).identity and EnvSpec(Shop).deterministic_verifier
