"""Figures of attempts made by hand."""

from __future__ import annotations

import json

import pytest

from offline_agent.evaluation import report
from offline_agent.records import Action, Context, Step, Task, ToolCall, Verdict
from offline_agent.rollouts.attempts import Attempt


def attempt(task: str, number: int, score: float | None, faults: str = "", cut_by: str | None = None) -> Attempt:
    """One call for each letter of `faults`: `.` went through, `u` unknown tool, `t` refused, `=` repeated."""
    names = {"u": "unknown_tool", "t": "tool_error"}
    steps, key = [], ""
    for i, letter in enumerate(faults):
        key = key if letter == "=" else f"call {i}"
        steps.append(Step(Action(key, "", ToolCall("x", {})), key, "", fault=names.get(letter)))
    verdict = Verdict(None, None, "v", error="broken") if score is None else Verdict(score, score == 1, "v", "3")
    if cut_by == "max_steps":
        at_the_cut = Verdict(0.5, False, "v", "3").to_json()
        verdict = Verdict(0.0, False, "max_steps", evidence={"state_at_the_cut": at_the_cut})
    one = Task(task, "validation", {})
    context = Context(one, "", (), "go")
    end = 0.5 if cut_by == "max_steps" else score
    return Attempt(
        "candidate", "sampled", one, number, context, tuple(steps), verdict, cut_by is None, cut_by is not None,
        cut_by, end, generated=10, prefilled=30, tool_calls=len(steps),
    )  # fmt: skip


SOME = [
    attempt("a", 0, 1.0, ".."), attempt("a", 1, 0.5, ".="), attempt("b", 0, None, "u", "fault"),
    attempt("b", 1, 1.0, ".t."), attempt("c", 0, None, "", "time"), attempt("c", 1, None, "", "fault"),
    attempt("d", 0, 0.0, "====", "max_steps"), attempt("d", 1, 0.0, ".", "tokens"),
]  # fmt: skip


def test_every_figure_of_a_mode() -> None:
    got = report.figures(SOME, resamples=500)
    assert (got["tasks"], got["attempts"], got["unscored"], got["unscored_tasks"]) == (4, 8, 3, 1)
    assert got["success"]["mean"] == pytest.approx((0.5 + 1 + 0) / 3)
    assert got["success_if_unscored_failed"] == pytest.approx((0.5 + 0.5 + 0 + 0) / 4)
    assert got["reward"]["mean"] == pytest.approx((0.75 + 1 + 0) / 3)
    assert got["end_score"] == pytest.approx((0.75 + 1 + 0.25) / 3)
    assert set(got["pass_at"]) == set(got["pass_hat"]) == {"1", "2"}
    assert got["pass_at"]["2"]["mean"] == 0.5 and got["pass_hat"]["2"]["mean"] == 0.0  # of a and d alone
    assert got["cut_by"] == {"fault": 2, "max_steps": 1, "time": 1, "tokens": 1}
    assert (got["truncated"], got["truncated_rate"]) == (2, 0.25)
    assert got["cut_rates"] == {"max_steps": 0.125, "tokens": 0.125, "context": 0}
    calls = 2 + 2 + 1 + 3 + 4 + 1
    assert got["invalid_call_rate"] == pytest.approx(1 / calls) and got["refused_call_rate"] == pytest.approx(1 / calls)
    assert got["repeated_call_rate"] == pytest.approx(4 / calls)
    assert got["steps"] == calls / 8 and got["steps_of_successes"] == 2.5 and got["tool_calls"] == calls
    assert got["tokens"] == {"generated": 80, "prefilled": 240, "generated_per_attempt": 10}
    json.dumps(got, allow_nan=False)


def test_no_call_gives_no_rate_and_nothing_scored_no_success() -> None:
    got = report.figures([attempt("a", 0, None, "", "fault")])
    assert got["invalid_call_rate"] is None and got["repeated_call_rate"] is None
    assert got["success"]["mean"] is None and got["success"]["error"] and got["steps_of_successes"] is None


@pytest.mark.parametrize(("n", "wanted"), [(1, "1"), (3, "1 2 3"), (4, "1 2 4"), (6, "1 2 4 6"), (8, "1 2 4 8")])
def test_pass_at_powers_of_two_and_at_all_attempts(n: int, wanted: str) -> None:
    got = report.figures([attempt("a", i, float(i % 2)) for i in range(n)], resamples=100)
    assert list(got["pass_at"]) == wanted.split()


def test_a_comparison_is_over_the_tasks_both_could_be_scored_on() -> None:
    theirs = [attempt("a", 0, 0.0), attempt("b", 0, 1.0), attempt("c", 0, 1.0)]
    got = report.compare(report.results(SOME), report.results(theirs), resamples=500)
    assert got["difference"]["mean"] == pytest.approx(0.25) and got["tasks"] == 2
    assert (got["candidate"], got["against"], got["tasks_left_out"]) == (0.75, 0.5, 2)
    assert got["reward"]["difference"]["mean"] == pytest.approx((0.75 - 0 + 1 - 1) / 2)
    assert 0 < got["p_value"] <= 1 and 0 <= got["confidence_not_worse"] <= 1


def test_who_judged() -> None:
    assert report.verifiers(SOME) == [{"verifier": "v", "version": "3", "attempts": 5}]
