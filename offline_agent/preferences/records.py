"""Records of preferences: pairs, and refusals, which say why a candidate was not made into a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from offline_agent.records import Context, Step, Verdict

PairKind = Literal["step", "trajectory", "hindsight", "minimal"]


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two continuations of one history, one better than the other, and the evidence.

    Attributes:
        kind: The rule that made it.
        prefix: The shared history; its messages are the prompt.
        chosen: The better continuation, at least one step.
        rejected: The worse continuation, at least one step.
        q_chosen, q_rejected: Values in [0, 1]: estimates of the two actions for step pairs, else the ends' scores.
        visits_chosen, visits_rejected: Number of judged rollouts behind each value.
        confidence: P(Q_w > Q_l) of the first actions in which the two differ, under the policy; None where the tree
            has no rollouts to estimate it from.
        verdict_chosen, verdict_rejected: The evidence for each side; None only for step pairs, whose evidence is
            the counts.
        tree_id, node_id, chosen_edge, rejected_edge: The place in a search tree; None where it is from no tree.
        weight: 1/sqrt(pairs of the task) unless configured otherwise.
        rest_confidence: Probability that the whole rest of the chosen side is the better one, by the verdicts on both
            ends; None for step pairs, which make no such claim. docs/pairs.md lists the claim of each kind.
        reason: One readable sentence that explains the pair.
    """

    kind: PairKind
    prefix: Context
    chosen: tuple[Step, ...]
    rejected: tuple[Step, ...]
    q_chosen: float
    q_rejected: float
    visits_chosen: int
    visits_rejected: int
    confidence: float | None
    verdict_chosen: Verdict | None
    verdict_rejected: Verdict | None
    tree_id: str | None = None
    node_id: int | None = None
    chosen_edge: int | None = None
    rejected_edge: int | None = None
    weight: float = 1.0
    rest_confidence: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One row, branch or candidate that was refused; the pipeline writes it to quarantine.jsonl.

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
