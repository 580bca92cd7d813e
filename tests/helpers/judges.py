"""Promises of a verifier: a verdict, always; evidence that is JSON; no score it cannot stand by."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from offline_agent import catalog
from offline_agent.records import Verdict

HOSTILE = [None, 7, b"\xff", float("nan"), object(), "\ud800", {"a": object()}, [[object()]], "x" * 100_000]


def assert_judges(name: str, right: Sequence[Any], empty: Any) -> None:
    """Check the verifier of that name.

    Args:
        name: Its short name.
        right: Arguments that score 1, the answer first.
        empty: An answer that scores 0.
    """
    judge = catalog.resolve("judge", name)
    assert judge.__name__ == name and "Args:" in (inspect.getdoc(judge) or "")

    def verdict(*given: Any) -> Verdict:
        found = judge(*given)
        assert isinstance(found, Verdict) and found.verifier == name and found.version
        assert (found.score is None) == (found.error is not None)
        assert Verdict.from_json(json.loads(json.dumps(found.to_json(), allow_nan=True))).verifier == name
        return found

    first = verdict(*right)
    assert first.score == 1.0 and first.success is True and first.evidence
    nothing = verdict(empty, *right[1:])
    assert nothing.score == 0.0 and nothing.success is False
    for nonsense in HOSTILE:
        assert verdict(nonsense, *right[1:]).success is not True
        assert verdict(right[0], nonsense, *right[2:]).success is not True
    with ThreadPoolExecutor(4) as threads:
        assert [one.result() for one in [threads.submit(judge, *right) for _ in range(4)]] == [first] * 4
