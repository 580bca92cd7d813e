"""Warnings about how a run went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_AFTER, _DROP, _ACCURACY = 20, 0.5, 0.9


def stalled(records: Iterable[dict[str, Any]]) -> str | None:
    """Return a warning where pairs are told apart while the chosen sides become unlikely; None where they do not."""
    entries = list(records)
    if len(entries) < _AFTER:
        return None
    tenth = max(1, len(entries) // 10)
    fell = _mean(entries[:tenth], "sft") - _mean(entries[-tenth:], "sft")
    accuracy = _mean(entries[-tenth:], "accuracy")
    if accuracy < _ACCURACY or -fell < _DROP:
        return None
    return (
        f"accuracy on the pairs is {accuracy:.2f}, but a chosen token's log-probability fell by {-fell:.2f} on "
        "average: the policy forgets what it could do; raise dpo.sft or anchor.weight, or lower optimizer.learning_rate"
    )


def _mean(entries: Sequence[dict[str, Any]], name: str) -> float:
    return sum(float(entry[name]) for entry in entries) / len(entries)
