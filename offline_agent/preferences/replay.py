"""Records of replays, compared with what they repeat, and the histories that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from offline_agent.records import Context, Step, Verdict
from offline_agent.search.environment import Outcome

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
            context = context.child(step.action, step.observation, step.role, step.recorded)
    return context


def without_logps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with their ids kept and their log-probabilities dropped.

    They were measured after another history, so they say nothing of the present one.
    """
    return tuple(replace(step, action=replace(step.action, logps=None)) for step in steps)


def _told(verdict: Verdict) -> str:
    return f"{verdict.score:.10g} ({'success' if verdict.success else 'failure'})"
