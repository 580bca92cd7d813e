from __future__ import annotations

import pytest

from offline_agent_environments.repo.judge import repository_tests


@pytest.mark.parametrize(
    ("results", "strict", "share"),
    [
        ({"a": True, "b": True, "c": True}, 1.0, 1.0),
        ({"a": True, "b": False, "c": True}, 0.0, 0.5),
        ({"a": True, "b": True, "c": False}, 0.0, 0.0),
        ({"a": True, "c": True}, 0.0, 0.5),
        (None, 0.0, 0.0),
    ],
)
def test_a_patch_is_right_when_it_mends_and_breaks_nothing(
    results: dict[str, bool] | None, strict: float, share: float
) -> None:
    def run(patch: str) -> dict[str, bool] | None:
        return results

    assert repository_tests("diff", run, ["a", "b"], ["c"]).score == strict
    assert repository_tests("diff", run, ["a", "b"], ["c"], all_or_nothing=False).score == share
