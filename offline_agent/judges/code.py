"""Verifier of programs: unit tests for a function.

What a policy wrote is never run here but in the sandbox, apart from the tests (`judges.apart`), or by a callable that
the caller gives; where that cannot run it says so by raising, and the verdict then has no score.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from offline_agent.judges.apart import Outcome, TestRun
from offline_agent.judges.verifiers import Unscorable, verifier

RunProgram = Callable[[str], str | None]
"""Runs a Python program in a sandbox and returns what it printed; None where it failed, hung or was stopped.
Raises where the sandbox itself does not work."""

_SHOWN = 20


@verifier("3")
def unit_tests(
    candidate: str,
    tests: Sequence[str],
    run: RunProgram | None = None,
    all_or_nothing: bool = False,
    setup: str = "",
    names: Sequence[str] | None = None,
    solution: str | None = None,
) -> tuple[float, bool, dict[str, Any]]:
    """Judge a program by the share of its unit tests that pass.

    The tests run in a process that the program cannot reach: they call it, and compare plain values that come back
    (`judges.apart`). With `run`, each test runs behind the program in one process, and passes only if a number is
    printed in the end that the program cannot know beforehand: `sys.exit(0)` or a printed "ok" does not pass for it,
    but a program that looks for its test finds it.

    Args:
        candidate: The program, as the policy wrote it.
        tests: Python statements that raise where the program is wrong.
        run: Runs one program and its test together; None = the sandbox, apart.
        all_or_nothing: Score 0 unless every test passes.
        setup: Code that is run before each test (not with `run`).
        names: Names of the program that the tests use; None = those that they do not define themselves.
        solution: A right program (not with `run`): a test that can be run apart with it, and not with the candidate,
            fails. None = such a test gives no score.
    """
    _check_texts("tests", tests)
    if not isinstance(candidate, str):
        raise Unscorable(f"candidate: got {type(candidate).__name__}, must be the program's text")
    if run is not None:
        outcomes = [Outcome(str(n), _passes(candidate, test, run)) for n, test in enumerate(tests)]
    else:
        task = (tuple(tests), setup, None if names is None else tuple(names))
        outcomes = _apart(candidate, *task)
        if solution is not None and any(one.unscorable for one in outcomes):
            outcomes = [
                one if right.unscorable or not one.unscorable else replace(one, error=one.unscorable, unscorable=None)
                for one, right in zip(outcomes, _of_solution(solution, *task), strict=True)
            ]  # fmt: skip
    return scored(outcomes, all_or_nothing)


def _apart(program: str, tests: tuple[str, ...], setup: str, names: tuple[str, ...] | None) -> list[Outcome]:
    with TestRun(program) as tested:
        return tested.outcomes(tests, setup, names)


_of_solution = lru_cache(maxsize=256)(_apart)


def scored(outcomes: Sequence[Outcome], all_or_nothing: bool) -> tuple[float, bool, dict[str, Any]]:
    """Return score, success and evidence of tests; raises Unscorable where one of them says nothing."""
    for outcome in outcomes:
        if outcome.unscorable is not None:
            raise Unscorable(f"test {outcome.test}: {outcome.unscorable}")
    failed = [o for o in outcomes if not o.passed]
    share, whole = 1 - len(failed) / len(outcomes), not failed
    evidence = {
        "tests": len(outcomes), "passed": len(outcomes) - len(failed), "failed": [o.test for o in failed[:_SHOWN]],
        "error": failed[0].error if failed else "",
    }  # fmt: skip
    return (float(whole) if all_or_nothing else share), whole, evidence


def _check_texts(name: str, texts: Any) -> None:
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise Unscorable(f"{name}: must be a list of at least one text, or nothing can be told; got {texts!r:.80}")


def _passes(candidate: str, test: str, run: RunProgram) -> bool:
    mark = secrets.token_hex(16)
    printed = run(f"{candidate}\n\n{test}\n\nprint({mark!r})\n")
    return printed is not None and printed.rstrip().endswith(mark)
