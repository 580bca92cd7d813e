"""Tells an outage of a policy from a request that it cannot answer.

A failure may be handed to whoever asked only where the policy has answered something else since the request was sent.
Until then it is held back; where nothing else is under way, what is held back is to be sent again, beside a request
that the policy has answered before. So an outage either passes, and has changed nothing, or it ends the run before
anything of it is in the results.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from offline_agent.errors import PolicyError
from offline_agent.policies.base import ProposeRequest
from offline_agent.seeding import mix

T = TypeVar("T")


class Outage(Generic[T]):
    """What is known of whether a policy answers, and what is held back. For one thread; sends nothing itself.

    Args:
        most: Failures in a row after which the policy is given up.

    Attributes:
        answers: How many answers have come; who sends a request notes this number with it.
        known: A request that the policy answers, or is expected to; None as long as there is none.
    """

    def __init__(self, most: int) -> None:
        self.answers = 0
        self.known: ProposeRequest | None = None
        self._most = most
        self._failures = 0
        self._held: list[T] = []

    def expect(self, request: ProposeRequest) -> None:
        """Take a request for one that the policy can answer, as long as it has not answered any."""
        if self.known is None:
            self.known = request

    def __len__(self) -> int:
        """Return how many failures are held back."""
        return len(self._held)

    def answered(self, request: ProposeRequest) -> list[T]:
        """Note that the policy answered; return what was held back, which may be handed on now."""
        self.answers += 1
        self._failures, self.known = 0, request
        return self.release()

    def failed(self, fault: object) -> None:
        """Note that the policy failed.

        Raises:
            PolicyError: It did so too often in a row.
        """
        self._failures += 1
        if self._failures >= self._most:
            raise PolicyError(
                f"the policy failed {self._failures} times in a row, the last time with: {fault}. "
                "Nothing is lost: run the same command again to go on"
            )

    def holds(self, failure: T, answers: int) -> bool:
        """Return whether a failure is held back: whether nothing was answered since `answers` was noted."""
        if answers == self.answers:
            self._held.append(failure)
        return answers == self.answers

    def release(self) -> list[T]:
        """Return what was held back; it no longer is."""
        held, self._held = self._held, []
        return held

    def probe(self) -> ProposeRequest | None:
        """Return `known`, with another seed after each failure: a policy that is there answers it."""
        known = self.known
        return known and known._replace(seeds=(mix(known.seeds[0], self._failures),))

    def forget(self) -> None:
        """Drop what is held back, and the count of failures."""
        self._held, self._failures = [], 0
