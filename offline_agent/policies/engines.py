"""Engines: policies as queues of requests, answered in the caller's thread, by a pool of threads, or in steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from offline_agent.crash_notes import noted
from offline_agent.errors import PolicyError
from offline_agent.policies.base import Answer, Done, Engine, Policy, Proposals, ProposeRequest, Usage, as_policy_error
from offline_agent.records import Action

_CLOSED = "the engine is closed"
_UNANSWERED = "the engine was closed before this request was answered"


class InlineEngine:
    """Answers each request at once, in the caller's thread. For policies that cost nothing."""

    def __init__(self, policy: Policy) -> None:
        self._propose = policy.propose
        self.busy_seconds = 0.0

    def answer(self, request: ProposeRequest) -> Answer:
        """Return the answer at once; an error that the policy raises is wrapped as a `PolicyError`."""
        try:
            return self._propose((request,))[0]
        except Exception as error:
            return as_policy_error(error)

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """See `Engine.submit`."""
        done(self.answer(request))

    def close(self) -> None:
        """Do nothing: no request is ever queued."""


class PoolEngine:
    """Runs every sample of every request as a task of one thread pool; for policies that wait for a remote answer.

    Args:
        sample: Maps a request and a seed to an action and its cost; raises PolicyError.
        pool: The thread pool; it outlives the engine.
    """

    def __init__(self, sample: Callable[[ProposeRequest, int], tuple[Action, Usage]], pool: ThreadPoolExecutor) -> None:
        self._sample = sample
        self._pool = pool
        self._lock = threading.Lock()
        self._open: set[_PendingRequest] = set()
        self._closed = False
        self._busy_since = 0.0
        self.busy_seconds = 0.0

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """See `Engine.submit`."""
        pending = _PendingRequest(request, done)
        with self._lock:
            closed = self._closed
            if not closed:
                if not self._open:
                    self._busy_since = perf_counter()
                self._open.add(pending)
        if closed:
            done(PolicyError(_CLOSED))
            return
        if not request.seeds:
            self._finish(pending, Proposals(()))
        try:
            for index in range(len(request.seeds)):
                self._pool.submit(self._run, pending, index)
        except RuntimeError as error:  # the policy was closed
            self._finish(pending, PolicyError(f"the policy is closed: {error}"))

    def close(self) -> None:
        """See `Engine.close`."""
        with self._lock:
            self._closed, left = True, list(self._open)
        for pending in left:
            self._finish(pending, PolicyError(_UNANSWERED))

    def _run(self, pending: _PendingRequest, index: int) -> None:
        request = pending.request
        if pending not in self._open:
            return  # the engine was closed, or another sample of the request failed
        try:
            with noted("an answer of the policy's server"):
                result = self._sample(request, request.seeds[index])
        except Exception as error:  # it fails this request alone
            self._finish(pending, as_policy_error(error))
            return
        with self._lock:
            pending.results[index] = result
            complete = len(pending.results) == len(request.seeds)
        if complete:
            actions, usages = zip(*(pending.results[at] for at in range(len(request.seeds))), strict=True)
            self._finish(pending, Proposals(actions, Usage(*map(sum, zip(*usages, strict=True)))))

    def _finish(self, pending: _PendingRequest, answer: Answer) -> None:
        # looked up under the lock, so that `done` is called once, by whoever finishes the request first
        with self._lock:
            known = pending in self._open
            self._open.discard(pending)
            if known and not self._open:
                self.busy_seconds += perf_counter() - self._busy_since
        if known:
            pending.done(answer)


@dataclass(eq=False, slots=True)
class _PendingRequest:
    """A request of which some samples are not finished."""

    request: ProposeRequest
    done: Done
    results: dict[int, tuple[Action, Usage]] = field(default_factory=dict)


class StepEngine:
    """A thread that makes steps of a policy, as `HFPolicy` has them, as long as it has requests.

    Attributes:
        busy_seconds: Seconds spent computing.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._condition = threading.Condition()
        self._closed = False
        self._awake = False
        self.busy_seconds = 0.0
        self._since = policy.counts.seconds
        self._thread = threading.Thread(target=self._work, name="step-engine", daemon=True)
        self._thread.start()

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """See `Engine.submit`."""
        if self._closed:
            done(PolicyError(_CLOSED))
            return
        self._policy.submit(request, done, self)
        with self._condition:
            self._awake = True
            self._condition.notify()
        if self._closed:  # closed between the check and the submission: the thread no longer answers
            self._policy.cancel(self, PolicyError(_UNANSWERED))

    def close(self) -> None:
        """See `Engine.close`."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._policy.cancel(self, PolicyError(_UNANSWERED))

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._awake and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
                self._awake = False
            try:
                while not self._closed and self._policy.pump():
                    self.busy_seconds = self._policy.counts.seconds - self._since
            except Exception as error:  # raised by a callback; queued requests must still be answered
                self._closed = True
                self._policy.cancel(self, PolicyError(f"the engine stopped: {type(error).__name__}: {error}"))
                raise


def propose(engine: Engine, requests: Sequence[ProposeRequest]) -> list[Answer]:
    """Submit requests to an engine, wait for all of them, and return the answers in their order."""
    answers: list[Answer | None] = [None] * len(requests)
    left = threading.Semaphore(0)

    def keep(index: int) -> Done:
        def store(answer: Answer) -> None:
            answers[index] = answer
            left.release()

        return store

    for index, request in enumerate(requests):
        engine.submit(request, keep(index))
    for _ in requests:
        left.acquire()
    return [answer if answer is not None else PolicyError("no answer") for answer in answers]
