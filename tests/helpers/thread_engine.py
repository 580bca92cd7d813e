"""An engine for tests that answers a policy's requests from threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter

from offline_agent.errors import PolicyError
from offline_agent.policies.base import Answer, Done, Policy, ProposeRequest, as_policy_error


class ThreadEngine:
    """Answers requests from worker threads; each takes everything queued, up to `max_batch`.

    Args:
        policy: The policy; its `propose` must be safe to call from `workers` threads at once.
        workers: Number of threads.
        max_batch: Most requests given to one call of `propose`.
    """

    def __init__(self, policy: Policy, workers: int = 1, max_batch: int = 64) -> None:
        self._policy = policy
        self._max_batch = max_batch
        self._queue: list[tuple[ProposeRequest, Done]] = []
        self._condition = threading.Condition()
        self._closed = False
        self._running = 0
        self._busy_since = 0.0
        self.busy_seconds = 0.0
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """See `Engine.submit`."""
        with self._condition:
            if not self._closed:
                self._queue.append((request, done))
                self._condition.notify()
                return
        done(PolicyError("the engine is closed"))

    def close(self) -> None:
        """See `Engine.close`."""
        with self._condition:
            self._closed = True
            left, self._queue = self._queue, []
            self._condition.notify_all()
        for _, done in left:
            done(PolicyError("the engine was closed before this request was answered"))
        for thread in self._threads:
            thread.join(timeout=5)

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._queue and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
                batch, self._queue = self._queue[: self._max_batch], self._queue[self._max_batch :]
                if self._running == 0:
                    self._busy_since = perf_counter()
                self._running += 1
            answers: Sequence[Answer]
            try:
                answers = self._policy.propose([request for request, _ in batch])
                if len(answers) != len(batch):
                    raise PolicyError(f"{self._policy.name}.propose answered {len(answers)} of {len(batch)} requests")
            except Exception as error:
                answers = [as_policy_error(error)] * len(batch)
            with self._condition:
                self._running -= 1
                if self._running == 0:
                    self.busy_seconds += perf_counter() - self._busy_since
            for (_, done), answer in zip(batch, answers, strict=True):
                done(answer)
