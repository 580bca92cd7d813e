"""Many trees over one generator and one pool of environment workers: no simulation waits for another tree.

One thread (the caller's) owns all trees; generation runs in the policy's engine, environments and critics in the pool.
"""

from __future__ import annotations

import gc
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from offline_agent.envs.pool import EnvPool, attempt
from offline_agent.policies.base import Engine
from offline_agent.policies.engines import InlineEngine
from offline_agent.search.direct import Direct
from offline_agent.search.in_flight import EMPTY, Ticket
from offline_agent.search.requests import Critic, Desk, RunCounts, Sent
from offline_agent.search.restore import Opening, ReplayNeeded
from offline_agent.search.simulation import ASK, CRITICISE, EXECUTE, WAIT, WAKE
from offline_agent.search.tree_search import TreeSearch

__all__ = ["Critic", "EnvPool", "RunCounts", "Scheduler"]


class Scheduler:
    """Runs tree searches to their end, many at once.

    Args:
        engine: Answers proposals.
        pool: Steps environments.
        critic: Scores proposals; called in the pool.
        trees_in_flight: Trees searched at once.
        reset_seconds: Time limit of opening and resetting an environment; None = the pool's own. An action whose state
            is brought back by replay may take as long, and the pool's own for itself and each action replayed.
        critic_seconds: Time limit of the critic; None = the pool's own.
        seconds: Wall-clock budget; no simulation is issued after it.
        most_policy_errors: Failures of the policy in a row after which the run stops (and can be resumed); see
            `policies.outage`.
        tick: Called about every half second with the counts, for progress.
    """

    def __init__(
        self,
        engine: Engine,
        pool: EnvPool,
        critic: Critic | None = None,
        trees_in_flight: int = 32,
        seconds: float | None = None,
        reset_seconds: float | None = None,
        critic_seconds: float | None = None,
        most_policy_errors: int = 40,
        tick: Callable[[RunCounts], None] | None = None,
    ) -> None:
        self._engine = engine
        self._pool = pool
        self._trees = trees_in_flight
        self._seconds = seconds
        self._reset_seconds = reset_seconds
        self._tick = tick
        self._inbox: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self.counts = RunCounts()
        self._desk = Desk(engine, pool, critic, self.counts, most_policy_errors, self._post, critic_seconds)
        self._inline = self._desk.at_once(engine.answer) if isinstance(engine, InlineEngine) else None

    def run(
        self, searches: Iterable[tuple[TreeSearch, Sequence[Mapping[str, Any]]]]
    ) -> Iterator[TreeSearch]:
        """Yield each search when it is finished, in the order of finishing.

        Args:
            searches: Each with the records of its log so far (empty for a new tree); drawn from lazily, and asked again
                after it had none: an iterator may have more later, as long as a tree is under way.

        Raises:
            PolicyError: The policy failed too often in a row.
            EnvironmentFault: The environment hung too often.
        """
        thresholds = gc.get_threshold()
        gc.set_threshold(100_000, 50, 100)  # trees are long-lived: the collector need not walk them again and again
        try:
            yield from self._run(iter(searches))
        finally:
            gc.set_threshold(*thresholds)

    def _run(
        self, source: Iterator[tuple[TreeSearch, Sequence[Mapping[str, Any]]]]
    ) -> Iterator[TreeSearch]:
        active, started = 0, time.monotonic()
        last_tick = started
        pending: list[TreeSearch] = []
        before = self.counts.seconds
        while True:
            while active < self._trees:
                entry = next(source, None)
                if entry is None:
                    break
                active += 1
                search, records = entry
                self._pool.submit(search.world.open, partial(self._post, (search, records)), self._reset_seconds)
            if not active:
                self._note_time(before + time.monotonic() - started)
                return
            try:
                target, value = self._inbox.get_nowait()
            except queue.Empty:
                waiting = time.perf_counter()
                try:
                    target, value = self._inbox.get(timeout=0.25)
                except queue.Empty:
                    target = None
                self.counts.seconds_waiting += time.perf_counter() - waiting
            if target is not None:
                if type(target) is Ticket:
                    self._advance(target, value, pending)
                elif type(target) is Sent:
                    for ticket, answer in self._desk.take(target, value):
                        self._advance(ticket, answer, pending)
                    self._desk.go_on()
                else:
                    self._start(target[0], target[1], value, pending)
                while pending:
                    search = pending.pop()
                    active -= 1
                    self.counts.trees += 1
                    self._pool.submit(search.world.close, _ignore)
                    yield search
            now = time.monotonic()
            if now - last_tick > 0.5:
                last_tick = now
                self._pool.reap()
                self._note_time(before + now - started)
                if self._tick is not None:
                    self._tick(self.counts)

    def _note_time(self, seconds: float) -> None:
        self.counts.seconds = seconds
        self.counts.generation_seconds = self._engine.busy_seconds
        self.counts.tool_seconds = self._pool.busy_seconds
        self.counts.hung = self._pool.hung

    def _post(self, target: Any, value: Any) -> None:
        self._inbox.put((target, value))

    def _start(
        self, search: TreeSearch, records: Sequence[Mapping[str, Any]], value: Any, over: list[TreeSearch]
    ) -> None:
        if not isinstance(value, Opening):
            self.counts.fault(str(value))
            search.abandon(str(value))
        else:
            if self._inline is not None and not self._pool.workers:
                search.direct = Direct(self._inline, search.world.execute)
            search.open(value)
            self._desk.expect(search.first_request())
            search.replay(records)
            if self._seconds is not None and self.counts.seconds > self._seconds:
                search.stop_for_time()
            search.issue()
            self._launch(search.in_flight)
        if search.finished:
            over.append(search)

    def _launch(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self._inbox.put((ticket, None))

    def _advance(self, ticket: Ticket, value: Any, over: list[TreeSearch]) -> None:
        """Drive a simulation until it has to wait for somebody."""
        run, search = ticket.run, ticket.search
        if run is None:
            if search.play(ticket):
                self._finish(ticket, over)
                return
            run = ticket.run = search.start(ticket)
        send, inline, world = run.send, self._inline, search.world
        while True:
            try:
                request = send(value)
            except StopIteration:
                self._finish(ticket, over)
                return
            kind = request[0]
            if kind == ASK:
                if inline is None:
                    self._desk.send(ticket, request)
                    return
                value = inline(request[1])
            elif kind == EXECUTE:
                if self._pool.workers:
                    job = partial(world.execute, request[1], request[2])
                    self._pool.submit(partial(job, replay=False), partial(self._executed, ticket, job))
                    return
                value = attempt(world.execute, request[1], request[2])
            elif kind == WAKE:
                slot = request[1]
                for waiter in slot.waiters:
                    self._inbox.put((waiter, slot.value))
                slot.waiters = value = None
            elif kind == WAIT:
                slot = request[1]
                if slot.value is EMPTY:
                    slot.waiters = (slot.waiters or []) + [ticket]
                    return
                value = slot.value
            else:
                assert kind == CRITICISE
                self._desk.send(ticket, request)
                return

    def _executed(self, ticket: Ticket, job: Callable[[], Any], value: Any) -> None:
        """Hand on what an action gave; where it needs a replay, begin again under a limit that has room for one."""
        if isinstance(value, ReplayNeeded):
            limit = self._pool.limit_of(self._reset_seconds, value.calls + 1)
            self._pool.submit(job, partial(self._post, ticket), limit)
        else:
            self._post(ticket, value)

    def _finish(self, ticket: Ticket, over: list[TreeSearch]) -> None:
        search, counts = ticket.search, self.counts
        if ticket.value is not None:
            counts.simulations += 1
        if ticket.cut in ("fault", "unscored"):
            counts.fault(ticket.error or ticket.cut)
        if self._seconds is not None and self.counts.seconds > self._seconds:
            search.stop_for_time()
        self._launch(search.finish(ticket))
        if search.finished:
            over.append(search)


def _ignore(result: Any) -> None:
    """Closing an environment that fails to close changes nothing that was recorded."""
