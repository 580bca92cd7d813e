"""Verifier of programs: unit tests, run apart from the program in two sessions of the sandbox.

The program is in one, the tests in the other, and this process between them; what passes is plain values
(`sandbox.inside.grading`). So a verdict cannot be written by the program that it is about. What a policy wrote is never
run here, but in the sandbox; where that cannot run it says so by raising, and the verdict then has no score.
"""

from __future__ import annotations

import ast
import builtins
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from offline_agent.judges.verifiers import Unscorable, verifier
from offline_agent.sandbox import Limits, Session, shared

LIMITS = Limits(cpu_seconds=2, wall_seconds=20.0)
_SHOWN, _LISTED = 500, 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one test.

    Attributes:
        test: Its number, or `module::function`.
        passed: Whether it passed.
        error: What it raised; "" where it passed.
        unscorable: Why the test says nothing about the program; None where it does.
    """

    test: str
    passed: bool
    error: str = ""
    unscorable: str | None = None


class TestRun:
    """Runs tests against a program, within `LIMITS` for each question of a test; `wall_seconds` is for all together.

    Once the program was stopped for its time the tests after that fail without being run.

    Args:
        program: The program's text, loaded as a whole; None where `files` are imported.
        files: Files of the program's folder: relative path → contents.
    """

    __test__ = False  # not a test class, whatever pytest makes of its name

    def __init__(self, program: str | None, files: Mapping[str, bytes] | None = None) -> None:
        self._program, self._files = program, dict(files or {})
        self._tested: Session | None = None
        self._broken: str | None = None
        self._end: float | None = None

    def outcomes(self, tests: Sequence[str], setup: str = "", names: Sequence[str] | None = None) -> list[Outcome]:
        """Return the outcome of each test.

        Args:
            tests: Code; a test passes unless it raises.
            setup: Code that is run before each.
            names: Globals of the program that the tests use; None = the names that neither they nor `setup` define.

        Raises:
            SandboxError: The sandbox does not work.
        """
        used = free_names(tests, setup) if names is None else list(names)
        found: list[Outcome] = []
        with shared().session(limits=LIMITS) as grader:
            for number, test in enumerate(tests):
                request = {"op": "grade", "names": used, "setup": setup, "tests": [test]}
                found += [Outcome(str(number), o.passed, o.error, o.unscorable) for o in self._graded(grader, request)]
                if grader.ended:  # a test that ends its own process says nothing of the program
                    rest = range(number + 1, len(tests))
                    return found + [Outcome(str(n), False, "", "a test before it ended the tests") for n in rest]
        return found

    def grade_files(self, modules: Mapping[str, str], packages: Sequence[str]) -> list[Outcome]:
        """Return the outcomes of the functions `test…` of test files.

        Args:
            modules: Name → code.
            packages: Top-level packages that are imported from the program.

        Raises:
            SandboxError: The sandbox does not work.
        """
        found: list[Outcome] = []
        for name, source in modules.items():
            with shared().session(limits=LIMITS) as grader:
                request = {"op": "grade", "names": [], "files": {name: source}, "modules": list(packages)}
                found += self._graded(grader, request)
        return found

    def close(self) -> None:
        """End the program."""
        if self._tested is not None:
            self._tested.close()
            self._tested = None

    def __enter__(self) -> TestRun:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _graded(self, grader: Session, request: dict[str, Any]) -> list[Outcome]:
        """Put one request to the tests' session, and its questions to the program's."""
        if self._end is None:
            self._end = time.monotonic() + LIMITS.wall_seconds
        body: dict[str, Any] = request
        if self._started() is None and self._program is not None:
            return [Outcome(str(n), False, str(self._broken)) for n in range(len(request["tests"]))]
        while True:
            reply = grader.ask(body)
            answer = reply["body"]
            if answer is None:
                return [Outcome("0", False, "", f"the tests' own process ended ({reply['status']})")]
            if "ask" in answer:
                body = self._answer(answer["ask"]) if time.monotonic() < self._end else {"stopped": "it took too long"}
            elif "results" in answer:
                return [
                    Outcome(test, bool(one["passed"]), str(one["error"]), one["unscorable"])
                    for test, one in answer["results"].items()
                ]
            else:
                return [Outcome("0", False, "", f"the tests raised {answer.get('raised')}: {answer.get('text')}")]

    def _answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        tested = self._started()
        if tested is None:
            return {"stopped": self._broken}
        reply = tested.ask(question)
        if reply["body"] is None:
            self._tested = None
            if reply["status"] in ("cpu", "wall"):
                self._broken = "the program was stopped for its time"
            return {"stopped": f"the program ended or was stopped ({reply['status']})"}
        body: dict[str, Any] = reply["body"]
        return body if _readable(body) else {"stopped": "its answer cannot be read"}

    def _started(self) -> Session | None:
        """Return the program's session, started where it is not; None where the program cannot be loaded."""
        if self._tested is None and self._broken is None:
            session = shared().session(files=self._files, limits=LIMITS)
            body: dict[str, Any] = {"value": None}
            if self._program is not None:
                reply = session.ask({"op": "load", "code": self._program})
                body = reply["body"] or {"raised": "the program ended", "bases": [], "text": reply["status"]}
                if not _readable(body):
                    body = {"raised": "its answer cannot be read", "text": ""}
            if "value" not in body:
                self._broken = f"loading it: {body['raised']}: {body['text']}"[:_SHOWN]
                session.close()
            else:
                self._tested = session
        return self._tested


def _readable(body: Any) -> bool:
    """Return whether an answer of the program's session, which the program may have written, has the parts it needs."""
    return isinstance(body, dict) and (
        "value" in body or isinstance(body.get("bases"), list)
        and all(isinstance(body.get(name), str) for name in ("raised", "text"))
    )  # fmt: skip


def free_names(tests: Sequence[str], setup: str) -> list[str]:
    """Return the names that tests load and neither they nor their setup define; raises SyntaxError."""
    loaded: dict[str, None] = {}
    defined = set(dir(builtins))
    for node in (node for text in (setup, *tests) for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                loaded[node.id] = None
            else:
                defined.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            defined.add(node.name)
    return [name for name in loaded if name not in defined]


@verifier("3")
def unit_tests(
    candidate: str,
    tests: Sequence[str],
    all_or_nothing: bool = False,
    setup: str = "",
    names: Sequence[str] | None = None,
    solution: str | None = None,
) -> tuple[float, bool, dict[str, Any]]:
    """Judge a program by the share of its unit tests that pass.

    The tests run in a process that the program cannot reach: they call it, and compare plain values that come back
    (`TestRun`).

    Args:
        candidate: The program, as the policy wrote it.
        tests: Python statements that raise where the program is wrong.
        all_or_nothing: Score 0 unless every test passes.
        setup: Code that is run before each test.
        names: Names of the program that the tests use; None = those that they do not define themselves.
        solution: A right program: a test that can be run apart with it, and not with the candidate,
            fails. None = such a test gives no score.
    """
    if not isinstance(tests, list | tuple) or not tests or not all(isinstance(text, str) for text in tests):
        raise Unscorable(f"tests: must be a list of at least one text, or nothing can be told; got {tests!r:.80}")
    if not isinstance(candidate, str):
        raise Unscorable(f"candidate: got {type(candidate).__name__}, must be the program's text")
    task = (tuple(tests), setup, None if names is None else tuple(names))
    outcomes = _apart(candidate, *task)
    if solution is not None and any(one.unscorable for one in outcomes):
        outcomes = [
            one if right.unscorable or not one.unscorable else replace(one, error=one.unscorable, unscorable=None)
            for one, right in zip(outcomes, _solution_outcomes(solution, *task), strict=True)
        ]
    return scored(outcomes, all_or_nothing)


def _apart(program: str, tests: tuple[str, ...], setup: str, names: tuple[str, ...] | None) -> list[Outcome]:
    with TestRun(program) as tested:
        return tested.outcomes(tests, setup, names)


_solution_outcomes = lru_cache(maxsize=256)(_apart)


def scored(outcomes: Sequence[Outcome], all_or_nothing: bool) -> tuple[float, bool, dict[str, Any]]:
    """Return score, success and evidence of tests; raises Unscorable where one of them says nothing."""
    for outcome in outcomes:
        if outcome.unscorable is not None:
            raise Unscorable(f"test {outcome.test}: {outcome.unscorable}")
    failed = [o for o in outcomes if not o.passed]
    share, whole = 1 - len(failed) / len(outcomes), not failed
    evidence = {
        "tests": len(outcomes), "passed": len(outcomes) - len(failed), "failed": [o.test for o in failed[:_LISTED]],
        "error": failed[0].error if failed else "",
    }  # fmt: skip
    return (float(whole) if all_or_nothing else share), whole, evidence
