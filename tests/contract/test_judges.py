"""Promises of every judge of the package: a verdict, always; evidence that is JSON; no score it cannot stand by."""

from __future__ import annotations

import inspect
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_agent import catalog
from offline_agent.records import Verdict


def run_program(program: str) -> str | None:
    """Run a program of these tests; what a policy wrote would need a sandbox."""
    command = [sys.executable, "-I", "-S", "-c", program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, env={})
    except OSError:  # longer than a command line may be
        return None
    return done.stdout if done.returncode == 0 else None


GOOD: dict[str, tuple[Any, ...]] = {
    "exact_match": ("cat", "the cat"),
    "f1": ("a black cat", "black cat"),
    "goal_state": ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
    "purchase": (
        {"type": "lamp", "attributes": ["red"], "options": {"size": "m"}, "price": 5},
        {"type": "lamp", "attributes": ["red"], "options": {"size": "m"}, "max_price": 5},
    ),
    "repository_tests": ("+fixed", lambda patch: {"bug": "fixed" in patch, "rest": True}, ["bug"], ["rest"]),
    "rows": ([(1, "a")], [(1, "a")]),
    "sql": ("select 2 - 1", "select 1", "DATABASE"),
    "symbolic": ("1/2", "0.5", 2.0),
    "unit_tests": ("def f(): return 1", ["assert f() == 1", "assert f() + 1 == 2"], run_program),
}
EMPTY: dict[str, Any] = {
    "exact_match": "", "f1": "", "goal_state": {}, "purchase": None, "repository_tests": "", "rows": [],
    "sql": "", "symbolic": "", "unit_tests": "",
}  # fmt: skip
NAMES = sorted(GOOD)
HOSTILE = [None, 7, b"\xff", float("nan"), object(), "\ud800", {"a": object()}, [[object()]], "x" * 100_000]


@pytest.fixture()
def database(tmp_path: Path) -> Path:
    path = tmp_path / "d.sqlite"
    sqlite3.connect(path).close()
    return path


def verifier(name: str) -> Callable[..., Verdict]:
    found: Callable[..., Verdict] = catalog.resolve("judge", name)
    return found


def arguments(name: str, database: Path) -> list[Any]:
    return [database if argument == "DATABASE" else argument for argument in GOOD[name]]


def check(verdict: Verdict, name: str) -> None:
    assert isinstance(verdict, Verdict) and verdict.verifier == name and verdict.version
    assert (verdict.score is None) == (verdict.error is not None)
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json(), allow_nan=True))).verifier == name


def test_the_table_is_whole() -> None:
    of_trajectories = {"all_of", "any_of", "comparison", "ensemble", "environment", "hybrid", "llm", "mean_of",
                       "planned", "reward_model", "subgoals"}
    assert set(GOOD) == set(EMPTY) == set(catalog.JUDGES) - of_trajectories


@pytest.mark.parametrize("name", NAMES)
def test_the_right_answer_scores_one(name: str, database: Path) -> None:
    verdict = verifier(name)(*arguments(name, database))
    check(verdict, name)
    assert verdict.score == 1.0 and verdict.success is True and verdict.evidence


@pytest.mark.parametrize("name", NAMES)
def test_the_empty_answer_scores_nothing(name: str, database: Path) -> None:
    _, *rest = arguments(name, database)
    verdict = verifier(name)(EMPTY[name], *rest)
    check(verdict, name)
    assert verdict.score == 0.0 and verdict.success is False


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", [0, 1])
def test_nonsense_never_raises_and_never_succeeds(name: str, place: int, database: Path) -> None:
    for nonsense in HOSTILE:
        given = arguments(name, database)
        given[place] = nonsense
        verdict = verifier(name)(*given)
        check(verdict, name)
        assert verdict.success is not True


@pytest.mark.parametrize("name", NAMES)
def test_the_same_question_gets_the_same_verdict_from_any_thread(name: str, database: Path) -> None:
    judge, given = verifier(name), arguments(name, database)
    first = judge(*given)
    found: list[Verdict] = []
    threads = [threading.Thread(target=lambda: found.append(judge(*given))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [first] * 4


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is(name: str) -> None:
    judge = verifier(name)
    assert inspect.getdoc(judge) and judge.__name__ == name
    assert "Args:" in (inspect.getdoc(judge) or "")
