"""Unit tests as a verifier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offline_agent.judges import code
from offline_agent.judges.code import unit_tests

FUNCTIONS = Path(__file__).parents[2] / "data" / "functions.jsonl"  # rows of HumanEval's format
TESTS = ["assert f(1) == 2", "assert f(2) == 3", "assert f(-1) == 0", "assert f(0) == 1"]


@pytest.mark.parametrize(
    ("candidate", "score"),
    [
        ("def f(x): return x + 1", 1.0),
        ("def f(x): return abs(x) + 1", 0.75),
        ("def f(x): return 0", 0.25),
        ("import sys; sys.exit(0)", 0.0),
        ("import os; os._exit(0)", 0.0),
        ("def f(x): return x + 1\nprint('ok')", 1.0),
        ("def f(x):", 0.0),
        ("class E:\n    def __eq__(self, o): return True\ndef f(x): return E()", 0.0),
    ],
)
def test_the_share_of_tests_that_pass(candidate: str, score: float) -> None:
    verdict = unit_tests(candidate, TESTS)
    assert verdict.score == score and verdict.success is (score == 1.0)
    strict = unit_tests(candidate, TESTS, all_or_nothing=True)
    assert strict.score == float(score == 1.0)


def test_a_broken_sandbox_gives_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no room for a sandbox")

    assert unit_tests("x = 1", []).score is None
    monkeypatch.setattr(code, "shared", broken)
    verdict = unit_tests("def f(x): return 1", TESTS)
    assert verdict.score is None and "no room" in (verdict.error or "")


def test_gold_solutions_of_human_evals_format_pass_and_empty_ones_fail() -> None:
    problems = [json.loads(line) for line in FUNCTIONS.read_text().splitlines()]
    assert len(problems) == 6
    for problem in problems:
        test = f"{problem['test']}\ncheck({problem['entry_point']})"
        right = problem["prompt"] + problem["canonical_solution"]
        assert unit_tests(right, [test]).score == 1.0, problem["task_id"]
        assert unit_tests(problem["prompt"] + "    pass\n", [test]).score == 0.0, problem["task_id"]
