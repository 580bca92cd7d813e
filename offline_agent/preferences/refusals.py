"""Refusals: candidates not made into a row, each with its reason; the pipeline writes them to quarantine.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """One row, branch or candidate that was refused.

    Attributes:
        kind: The kind of the refused object: `tree`, `branch`, `step`, `trajectory`, `hindsight`, `minimal`,
            `filtered`, `pair` or `row`.
        name: Its name: the task's id, then nodes or edges after a slash.
        reason: One readable sentence: the rule, what it asks and what it got.
        facts: JSON-serialisable figures behind the reason.
    """

    kind: str
    name: str
    reason: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the refusal as a JSON-serialisable dict."""
        return {"kind": self.kind, "name": self.name, "reason": self.reason, **self.facts}
