"""Records of preferences: pairs; refusals, which say why a candidate was not made into a row; replays of actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from offline_agent.records import Context, Step, Verdict
from offline_agent.search.environment import Outcome

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


Goal = dict[str, Any]
UNREAD: Any = object()
"""In place of an observation that was not recorded."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay, complete or cut short.

    Attributes:
        context: The last context reached.
        steps: One per action that was taken; fewer than asked where the episode was over sooner.
        end: The end state, judged.
        start: The state right after `reset`, judged.
    """

    context: Context
    steps: tuple[Step, ...]
    end: Outcome
    start: Outcome

    @property
    def verdict(self) -> Verdict:
        """The end state's verdict."""
        assert self.end.verdict is not None  # it was judged
        return self.end.verdict

    @property
    def terminated(self) -> bool:
        """Whether the episode is over by itself."""
        return self.end.terminated

    @property
    def verified(self) -> bool:
        """Whether the end state was judged a success."""
        return self.verdict.success is True

    def difference(self, recorded: Sequence[str | None], ended: bool) -> tuple[int, str] | None:
        """Return the action from which on the replay differs from a record, from 0, and how; None where it does not.

        Args:
            recorded: The observation after each action; `UNREAD` where it is not known.
            ended: The recorded episode was over by itself.
        """
        for number, (old, new) in enumerate(zip(recorded, self.steps, strict=False)):
            if old is not UNREAD and old != new.observation:
                return number, f"action {number + 1} is answered differently when it is replayed"
        done, wanted = len(self.steps), len(recorded)
        if done < wanted:
            return done, f"when it is replayed, the episode is over after {done} of {wanted} actions"
        if ended and not self.terminated:
            return wanted - 1, f"when it is replayed, the episode is not over after {wanted} actions"
        return None

    def other_verdict(self, old: Verdict, tolerance: float) -> str | None:
        """Return how the verdict differs from an earlier one, where both have a score; None where it does not."""
        new = self.verdict
        if old.score is None or new.score is None:
            return None
        if old.success == new.success and abs(old.score - new.score) <= tolerance:
            return None
        return f"the verdict was {_told(old)} and is {_told(new)} when it is judged again"


def extend(prefix: Context, steps: Sequence[Step], closing: bool = True) -> Context:
    """Return `prefix` extended by the steps.

    Args:
        prefix: The history so far.
        steps: The actions that follow.
        closing: False leaves out the last step's observation, so that the history ends with the policy's turn.
    """
    context = prefix
    for number, step in enumerate(steps, 1):
        last = number == len(steps) and not closing
        if last:
            context = context.child(step.action, None, step.role)
        else:
            context = context.child(step.action, step.observation, step.role, step.recorded, step.anew)
    return context


def without_logps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with their ids kept and their log-probabilities dropped.

    They were measured after another history, so they say nothing of the present one.
    """
    return tuple(replace(step, action=replace(step.action, logps=None)) for step in steps)


def _told(verdict: Verdict) -> str:
    return f"{verdict.score:.10g} ({'success' if verdict.success else 'failure'})"
