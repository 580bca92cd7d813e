"""Detection of policy outages: an outage must not be taken for a request that the policy cannot answer.

A failure is reported to its caller only if the policy has answered another request since the failed one was sent. Until
then it is held back. If no other request is in flight, the held requests are sent again, together with a request that
the policy has answered before. So an outage either ends without any effect on the results, or it ends the run before
any failure gets into the results. A `PolicyMismatch` is no outage: it ends the run at once.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from offline_agent.errors import PolicyError, PolicyMismatch
from offline_agent.policies.base import ProposeRequest
from offline_agent.seeding import mix

T = TypeVar("T")


class Outage(Generic[T]):
    """Failures in a row, and failures that are held back. Used by one thread; it sends no request itself.

    Args:
        most: Failures in a row after which an error is raised.

    Attributes:
        answers: Number of answers so far; the sender of a request notes it with the request.
        known: A request that the policy has answered, or should be able to answer; None where there is none yet.
    """

    def __init__(self, most: int) -> None:
        self.answers = 0
        self.known: ProposeRequest | None = None
        self._most = most
        self._failures = 0
        self._held: list[T] = []

    def expect(self, request: ProposeRequest) -> None:
        """Use a request as `known` while the policy has not answered any request."""
        if self.known is None:
            self.known = request

    def __len__(self) -> int:
        """Return the number of failures that are held back."""
        return len(self._held)

    def answered(self, request: ProposeRequest) -> list[T]:
        """Record an answer and return the held failures, which may be reported now."""
        self.answers += 1
        self._failures, self.known = 0, request
        return self.release()

    def failed(self, fault: object) -> None:
        """Record a failure.

        Raises:
            PolicyError: The policy failed too often in a row, or the failure is a `PolicyMismatch`.
        """
        if isinstance(fault, PolicyMismatch):
            raise fault
        self._failures += 1
        if self._failures >= self._most:
            raise PolicyError(
                f"the policy failed {self._failures} times in a row, the last time with: {fault}. "
                "Nothing is lost: run the same command again to go on"
            )

    def holds(self, failure: T, answers: int) -> bool:
        """Hold a failure back if no request was answered since `answers` was noted; return whether it is held."""
        if answers == self.answers:
            self._held.append(failure)
        return answers == self.answers

    def release(self) -> list[T]:
        """Return the held failures and hold them no longer."""
        held, self._held = self._held, []
        return held

    def probe(self) -> ProposeRequest | None:
        """Return `known` with a new seed after each failure; a policy that works answers it."""
        known = self.known
        return known and known._replace(seeds=(mix(known.seeds[0], self._failures),))

    def forget(self) -> None:
        """Drop the held failures and the count of failures."""
        self._held, self._failures = [], 0
