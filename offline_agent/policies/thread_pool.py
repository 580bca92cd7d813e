"""An engine in which every sample is a task of a thread pool: for policies that wait for somebody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from offline_agent.errors import PolicyError
from offline_agent.policies.base import Answer, Done, Engine, Proposals, ProposeRequest, Usage
from offline_agent.records import Action


class PoolEngine:
    """Every sample of every request is a task of one thread pool; see `base.Engine`.

    Args:
        sample: From a request and a seed to an action and its cost; raises PolicyError.
        pool: Where it runs; it outlives the engine.
    """

    def __init__(self, sample: Callable[[ProposeRequest, int], tuple[Action, Usage]], pool: ThreadPoolExecutor) -> None:
        self._sample = sample
        self._pool = pool
        self._lock = threading.Lock()
        self._open: dict[int, _Pending] = {}
        self._count = 0
        self._closed = False
        self._busy_since = 0.0
        self.busy_seconds = 0.0

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """See `base.Engine.submit`."""
        with self._lock:
            closed, number = self._closed, self._count
            if not closed:
                self._count += 1
                if not self._open:
                    self._busy_since = perf_counter()
                self._open[number] = _Pending(done, len(request.seeds))
        if closed:
            done(PolicyError("the engine is closed"))
            return
        if not request.seeds:
            self._finish(number, Proposals(()))
        try:
            for index, seed in enumerate(request.seeds):
                self._pool.submit(self._run, number, index, request, seed)
        except RuntimeError as error:  # the policy was closed
            self._finish(number, PolicyError(f"the policy is closed: {error}"))

    def close(self) -> None:
        """See `base.Engine.close`."""
        with self._lock:
            self._closed = True
            numbers = list(self._open)
        for number in numbers:
            self._finish(number, PolicyError("the engine was closed before this request was answered"))

    def _run(self, number: int, index: int, request: ProposeRequest, seed: int) -> None:
        if number not in self._open:
            return  # closed, or a sibling failed
        try:
            result = self._sample(request, seed)
        except Exception as error:  # whatever it is, it is this request's alone
            fault = error if isinstance(error, PolicyError) else PolicyError(f"{type(error).__name__}: {error}")
            fault.__cause__ = error if fault is not error else error.__cause__
            self._finish(number, fault)
            return
        with self._lock:
            pending = self._open.get(number)
            if pending is None:
                return
            pending.results[index] = result
            complete = len(pending.results) == pending.samples
        if complete:
            self._finish(number, pending.answer())

    def _finish(self, number: int, answer: Answer) -> None:
        with self._lock:
            pending = self._open.pop(number, None)
            if pending is not None and not self._open:
                self.busy_seconds += perf_counter() - self._busy_since
        if pending is not None:
            pending.done(answer)


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


class _Pending:
    """A request of which some samples are still out."""

    def __init__(self, done: Done, samples: int) -> None:
        self.done = done
        self.samples = samples
        self.results: dict[int, tuple[Action, Usage]] = {}

    def answer(self) -> Proposals:
        ordered = [self.results[index] for index in range(self.samples)]
        costs = [cost for _, cost in ordered]
        usage = Usage(
            sum(cost.generated for cost in costs),
            sum(cost.prefilled for cost in costs),
            sum(cost.cached for cost in costs),
        )
        return Proposals(tuple(action for action, _ in ordered), usage)
