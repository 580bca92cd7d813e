"""Time that passes as fast as it can be computed: a clock of events, and what a scheduler waits for with it.

Knows what a scheduler puts into its queue and its pool, and nothing of servers.
"""

from __future__ import annotations

import heapq
import queue
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from offline_agent.envs.pool import attempt
from offline_agent.policies.base import Proposals
from offline_agent.search.environment import Outcome


class Clock:
    """Virtual seconds, and what happens when.

    Attributes:
        now: Where it stands.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Have something happen."""
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, event))

    def advance(self, until: float) -> None:
        """Go on to a time; everything due by then happens, each at its own time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def step(self) -> bool:
        """Go on to the next event; False where there is none."""
        if not self._events:
            return False
        self.advance(self._events[0][0])
        return True


class Inbox:
    """Stands in for the scheduler's queue: waiting for it is what makes time pass.

    Args:
        clock: The cluster's.
        seconds: The driver's own work for each answer of the policy.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._items: deque[tuple[Any, Any]] = deque()
        self.busy = 0.0

    def put(self, item: tuple[Any, Any]) -> None:
        """See `SimpleQueue.put`."""
        self._items.append(item)

    def get_nowait(self) -> tuple[Any, Any]:
        """See `SimpleQueue.get_nowait`."""
        if not self._items:
            raise queue.Empty
        item = self._items.popleft()
        if type(item[1]) is Proposals and self._seconds:
            self.busy += self._seconds
            self._clock.advance(self._clock.now + self._seconds)
        return item

    def get(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Go on until there is something; see `SimpleQueue.get`."""
        while not self._items:
            if not self._clock.step():
                raise RuntimeError("nobody will ever answer: a request was lost")
        return self.get_nowait()


class Workers:
    """Stands in for the pool of environment workers."""

    def __init__(self, clock: Clock, workers: int, seconds: float) -> None:
        self.workers, self.hung, self.busy_seconds = workers, 0, 0.0
        self._clock, self._seconds, self._free = clock, seconds, workers
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._rng = random.Random(1)

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None], limit: float | None = None) -> None:
        """See `EnvPool.submit`."""
        self._jobs.append((job, done))
        self._start()

    def lane(self, own_thread: bool) -> Workers:
        """Return itself: jobs have no threads here; see `EnvPool.lane`."""
        return self

    def close(self) -> None:
        """Nothing is to be ended."""

    def reap(self) -> None:
        """Nothing hangs."""

    def _start(self) -> None:
        while self._jobs and self._free:
            job, done = self._jobs.popleft()
            self._free -= 1
            result = attempt(job)
            seconds = self._seconds * (0.5 + self._rng.random()) if type(result) is Outcome else 0.0
            self.busy_seconds += seconds

            def end(done: Callable[[Any], None] = done, result: Any = result) -> None:
                self._free += 1
                done(result)
                self._start()

            self._clock.after(seconds, end)
