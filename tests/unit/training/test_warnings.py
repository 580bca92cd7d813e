"""The warning of a policy that tells pairs apart and forgets its own answers."""

from __future__ import annotations

from typing import Any

from offline_agent.training.checkpoints import stalled


def records(accuracy: float, fall: float, count: int = 40) -> list[dict[str, Any]]:
    return [
        {"accuracy": 0.5 + (accuracy - 0.5) * k / count, "sft": 0.2 + fall * k / count} for k in range(1, count + 1)
    ]


def test_it_warns_where_accuracy_rises_and_likelihood_falls() -> None:
    assert "dpo.sft" in (stalled(records(1.0, 1.5)) or "")


def test_it_is_silent_otherwise() -> None:
    assert stalled(records(1.0, 0.1)) is None
    assert stalled(records(0.7, 1.5)) is None
    assert stalled(records(1.0, 1.5, count=10)) is None
    assert stalled([]) is None
