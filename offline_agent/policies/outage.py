"""Requests to a policy, and its outages: an outage must not be taken for a request that the policy cannot answer.

A failure counts against a request only if the policy has answered another one since the failed one was sent; after
`RETRIES` more failures of that kind it is reported. Until then it is held back. If no other request is under way, the
held requests are sent again, together with a request that the policy has answered before. So an outage either ends
without any effect on the results, or it ends the run before any failure gets into the results. A `PolicyMismatch` is no
outage: it ends the run at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from offline_agent.errors import PolicyError, PolicyMismatch
from offline_agent.policies.base import ProposeRequest
from offline_agent.seeding import mix

T = TypeVar("T")

Gate = Callable[[bool], int | None]
"""Takes whether no request is under way; returns the version of the weights that answer the next one.

None = they are about to change, and nothing is to be sent. It may block where none is under way, and raise.
"""

RETRIES = 3  # of a failed request: an outage of the policy must be told from a request that it can never answer


@dataclass(slots=True, eq=False, repr=False)
class SentRequest(Generic[T]):
    """A request under way, or held back.

    Attributes:
        asker: Gets the answer; None = none: the request only shows whether the policy answers.
        request: A request for proposals, or another one that the policy answers.
        answers: Number of answers that had come when it was last sent.
        failures: Number of times that it failed while the policy answered others.
    """

    asker: T | None
    request: Any
    answers: int = 0
    failures: int = 0


class RequestQueue(Generic[T]):
    """Sends requests, and holds failures back during an outage. For one thread.

    Each answer comes back through `post`, and is to be given to `answered`, `settled` or `failed`. These return the
    askers that may go on, each with its answer, or with the fault of a request that was given up.

    Args:
        submit: Submits a request; takes it and the function that takes its answer, which any thread may call.
        post: Called with a request and its answer, or what failed.
        most: Failures in a row after which an error is raised.
        answered_before: The policy has answered earlier: if it fails everything from the first request on, that is no
            outage.
        gate: Asked by `let_in` before anything is sent; None = the weights do not change.

    Attributes:
        version: Of the weights that answer what is under way; None without a gate.
        held: The requests that are held back, each with its fault.
    """

    def __init__(
        self,
        submit: Callable[[Any, Callable[[Any], None]], None],
        post: Callable[[SentRequest[T], Any], None],
        most: int,
        answered_before: bool = False,
        gate: Gate | None = None,
    ) -> None:
        self._submit = submit
        self._post = post
        self._most = most
        self._answered_before = answered_before
        self._gate = gate
        self._waiting: list[SentRequest[T]] = []  # for the gate
        self.version: int | None = None
        self._known: ProposeRequest | None = None
        self._answers = 0
        self._failures = 0
        self.held: list[tuple[SentRequest[T], Any]] = []
        self._under_way: set[SentRequest[T]] = set()

    def expect(self, request: ProposeRequest) -> None:
        """Expect the policy to answer a request, as long as it has answered none: the request that tests an outage."""
        if self._known is None:
            self._known = request

    def let_in(self) -> None:
        """Send what waits for the gate, unless the weights are about to change: all under way are of one version."""
        if self._gate is None:
            return
        version = self._gate(not self._under_way)
        if version is not None:
            self.version, waiting, self._waiting = version, self._waiting, []
            for sent in waiting:
                self._send_now(sent)

    def send(self, asker: T | None, request: Any) -> None:
        """Send a request."""
        self._send(SentRequest(asker, request))

    def post(self, asker: T, request: Any, answer: Any) -> None:
        """Treat a request that was answered at once as one that was sent."""
        sent = SentRequest(asker, request, self._answers)
        self._under_way.add(sent)
        self._post(sent, answer)

    def note(self, request: ProposeRequest) -> None:
        """Record that the policy answered a request, where nothing is held back."""
        self._answers += 1
        self._failures, self._known = 0, request

    def answered(self, sent: SentRequest[T], answer: Any) -> list[tuple[T, Any]]:
        """Take an answer; it shows that the failures that are held back are none of an outage."""
        if not self._ended(sent):
            return []
        self.note(sent.request)
        held, self.held = self.held, []
        ready = [each for failed, fault in held for each in self._again(failed, fault)]
        return ready if sent.asker is None else [*ready, (sent.asker, answer)]

    def settled(self, sent: SentRequest[T], answer: Any) -> list[tuple[T, Any]]:
        """Take an answer, or a failure that asking again does not change; it says nothing about an outage."""
        return [(sent.asker, answer)] if self._ended(sent) and sent.asker is not None else []

    def failed(self, sent: SentRequest[T], fault: Any, counts: bool = True) -> list[tuple[T, Any]]:
        """Take a failure: hold it back, or send the request again where the policy answered another one meanwhile.

        Args:
            sent: The request.
            fault: What its asker is given in the end.
            counts: Whether it is one of the failures in a row.

        Raises:
            PolicyError: The policy failed too often in a row, or the failure is a `PolicyMismatch`.
        """
        if not self._ended(sent):
            return []
        if isinstance(fault, PolicyMismatch):
            raise fault
        self._failures += counts
        if self._failures >= self._most:
            raise PolicyError(
                f"the policy failed {self._failures} times in a row, the last time with: {fault}. "
                "Nothing is lost: run the same command again to go on"
            )
        if sent.answers != self._answers:
            return self._again(sent, fault)
        self.held.append((sent, fault))
        return []

    def go_on(self) -> list[tuple[T, Any]]:
        """Send again what is held back, where nothing is under way that could show whether the policy answers."""
        if not self.held or self._under_way or self._waiting:
            return []
        held, self.held = self.held, []
        if self._known is None and self._answered_before:
            return [(sent.asker, fault) for sent, fault in held if sent.asker is not None]
        for sent, _ in held:
            if sent.asker is not None:
                self._send(sent)
        if self._known is not None:  # with another seed each time: a policy that works answers it
            self.send(None, self._known._replace(seeds=(mix(self._known.seeds[0], self._failures),)))
        return []

    def forget(self) -> None:
        """Drop what is held back or under way, and the count of failures; answers that still come are ignored."""
        self.held, self._under_way, self._waiting, self._failures = [], set(), [], 0

    def _send(self, sent: SentRequest[T]) -> None:
        if self._gate is None:
            self._send_now(sent)
        else:
            self._waiting.append(sent)

    def _send_now(self, sent: SentRequest[T]) -> None:
        sent.answers = self._answers
        self._under_way.add(sent)
        self._submit(sent.request, partial(self._post, sent))

    def _ended(self, sent: SentRequest[T]) -> bool:
        """Record that a request is no longer under way; return whether it was."""
        known = sent in self._under_way
        self._under_way.discard(sent)
        return known

    def _again(self, sent: SentRequest[T], fault: Any) -> list[tuple[T, Any]]:
        """Send a request again that failed while the policy answered others; return its asker where it is given up."""
        if sent.asker is None:
            return []
        sent.failures += 1
        if sent.failures > RETRIES:
            return [(sent.asker, fault)]
        self._send(sent)
        return []
