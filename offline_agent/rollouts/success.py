"""A policy's success rate on a task, and its learnability p(1-p)."""

from __future__ import annotations

from dataclasses import dataclass

PRIOR = 0.5
"""Both parameters of the Beta prior of a task's success rate (Jeffreys' prior)."""


@dataclass(frozen=True, slots=True)
class Known:
    """Counts of the policy's rollouts on one task.

    Attributes:
        successes: Rollouts that succeeded.
        attempts: Rollouts that were judged, or that a limit of the policy's own cut.
    """

    successes: int
    attempts: int

    @property
    def solved(self) -> bool:
        """Whether every rollout succeeded, and there is one."""
        return 0 < self.attempts == self.successes

    @property
    def learnability(self) -> float:
        """E[p(1-p)] of the success rate p under its Beta(a, b) posterior: ab / ((a+b)(a+b+1)); in (0, 1/4)."""
        a, b = PRIOR + self.successes, PRIOR + self.attempts - self.successes
        return a * b / ((a + b) * (a + b + 1))
