"""Verifier of patches: a repository's tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offline_agent.judges.verifiers import Unscorable, verifier

RunTests = Callable[[str], Mapping[str, bool] | None]
"""Applies a patch to a fresh copy of the repository and returns which tests pass, by id; None where the patch does not
apply. Raises where the sandbox itself does not work."""

_SHOWN = 20


@verifier("2")
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
    if not isinstance(must_pass, list | tuple) or not must_pass or not all(isinstance(one, str) for one in must_pass):
        raise Unscorable(f"must_pass: must be a list of at least one id, or nothing can be told; got {must_pass!r:.80}")
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
