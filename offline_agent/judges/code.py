"""Verifiers of programs: unit tests for a function, and a patch with a repository's tests.

What a policy wrote is never run here. Both verifiers are given the callable that runs it, which is where the sandbox
is; one that cannot run says so by raising, and the verdict then has no score.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offline_agent.judges.verifiers import Unscorable, verifier

RunProgram = Callable[[str], str | None]
"""Runs a Python program in a sandbox and returns what it printed; None where it failed, hung or was stopped.
Raises where the sandbox itself does not work."""

RunTests = Callable[[str], Mapping[str, bool] | None]
"""Applies a patch to a fresh copy of the repository and returns which tests pass, by id; None where the patch does not
apply. Raises where the sandbox itself does not work."""

_SHOWN = 20


@verifier("1")
def unit_tests(
    candidate: str, tests: Sequence[str], run: RunProgram, all_or_nothing: bool = False
) -> tuple[float, bool, dict[str, Any]]:
    """Judge a program by the share of its unit tests that pass, each in a process of its own.

    A test passes only if the program gets to its end: behind the test a number is printed that the candidate cannot
    know beforehand, so `sys.exit(0)` or a printed "ok" does not pass for it.

    Args:
        candidate: The program, as the policy wrote it.
        tests: Python statements that raise where the program is wrong; run behind the candidate.
        run: Runs one program.
        all_or_nothing: Score 0 unless every test passes.
    """
    _check_texts("tests", tests)
    if not isinstance(candidate, str):
        raise Unscorable(f"candidate: got {type(candidate).__name__}, must be the program's text")
    passed = [_passes(candidate, test, run) for test in tests]
    share = sum(passed) / len(passed)
    whole = all(passed)
    failed = [i for i, ok in enumerate(passed) if not ok]
    evidence = {"tests": len(passed), "passed": sum(passed), "failed": failed[:_SHOWN]}
    return (float(whole) if all_or_nothing else share), whole, evidence


def _check_texts(name: str, texts: Any) -> None:
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise Unscorable(f"{name}: must be a list of at least one text, or nothing can be told; got {texts!r:.80}")


def _passes(candidate: str, test: str, run: RunProgram) -> bool:
    mark = secrets.token_hex(16)
    printed = run(f"{candidate}\n\n{test}\n\nprint({mark!r})\n")
    return printed is not None and printed.rstrip().endswith(mark)


@verifier("1")
def repository_tests(
    patch: str,
    run: RunTests,
    must_pass: Sequence[str],
    must_stay: Sequence[str] = (),
    all_or_nothing: bool = True,
) -> tuple[float, bool, dict[str, Any]]:
    """Judge a patch by a repository's tests (SWE-bench, Jimenez et al. 2024).

    Args:
        patch: The policy's changes, as a diff.
        run: Applies it and runs the tests.
        must_pass: Ids of tests that fail without the patch and must pass with it.
        must_stay: Ids of tests that pass without it and must still pass.
        all_or_nothing: Score 0 unless every named test passes; otherwise the share of `must_pass` that does, and 0
            where a test of `must_stay` is broken.
    """
    _check_texts("must_pass", must_pass)
    if not isinstance(patch, str):
        raise Unscorable(f"patch: got {type(patch).__name__}, must be a diff's text")
    results = run(patch) if patch.strip() else None
    if results is None:
        return 0.0, False, {"applied": False}
    named = [*must_pass, *must_stay]
    absent = [test for test in named if test not in results]
    fixed = sum(bool(results.get(test)) for test in must_pass)
    broken = [test for test in must_stay if not results.get(test)]
    whole = fixed == len(must_pass) and not broken
    share = 0.0 if broken else fixed / len(must_pass)
    evidence = {
        "applied": True, "fixed": fixed, "of": len(must_pass), "broken": broken[:_SHOWN], "not run": absent[:_SHOWN],
    }  # fmt: skip
    return (float(whole) if all_or_nothing else share), whole, evidence
