"""Refusals: candidates not made into a row, each with its reason; the pipeline writes them to quarantine.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """One row, branch or candidate that was refused.

    Attributes:
        kind: The kind of the refused object: `tree`, `branch`, `step`, `trajectory`, `hindsight`, `minimal`,
            `filtered`, `pair` or `row`.
        name: Its name: the task's id, then nodes or edges after a slash.
        reason: One readable sentence: the rule, what it asks and what it got.
        facts: JSON-serialisable figures behind the reason; `candidates` = how many were refused by it, else 1.
    """

    kind: str
    name: str
    reason: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def candidates(self) -> int:
        """How many candidates were refused."""
        return int(self.facts.get("candidates", 1))

    def to_json(self) -> dict[str, Any]:
        """Return the refusal as a JSON-serialisable dict."""
        return {"kind": self.kind, "name": self.name, "reason": self.reason, **self.facts}


def together(refusals: Iterable[Refusal]) -> list[Refusal]:
    """Return those of the same kind, name and reason as one, the first, with the number of its `candidates`."""
    out: dict[tuple[str, str, str], Refusal] = {}
    for one in refusals:
        first = out.setdefault((one.kind, one.name, one.reason), one)
        if first is not one:
            count = first.candidates + one.candidates
            out[one.kind, one.name, one.reason] = replace(first, facts={**first.facts, "candidates": count})
    return list(out.values())
