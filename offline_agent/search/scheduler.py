"""The event loop that searches many trees over one policy and one pool of environments.

One thread (the caller's) owns all trees and runs all simulations; generation runs in the policy's engine, environments
and critics in the pool. All answers come back through one queue. So trees need no locks, and no simulation waits for
another tree.
"""

from __future__ import annotations

import gc
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from offline_agent.envs.pool import EnvPool, as_fault
from offline_agent.policies.base import Engine
from offline_agent.policies.outage import SentRequest
from offline_agent.records import Action
from offline_agent.search.environment import Opening, ReplayNeeded
from offline_agent.search.in_flight import PendingNode, Simulation
from offline_agent.search.requests import Critic, RunCounts, SearchRequests
from offline_agent.search.simulation import LATER, Calls
from offline_agent.search.tree_search import TreeSearch

__all__ = ["Critic", "EnvPool", "RunCounts", "Scheduler"]


_CLOSED = object()  # stands for a tree whose environments were closed; a failure to close changes nothing recorded


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
        self._requests = SearchRequests(
            engine, pool, critic, self.counts, most_policy_errors, self._post, critic_seconds
        )
        execute = self._submit if pool.workers else _execute
        self._calls = Calls(self._requests.ask, self._requests.send, execute, self._wake)

    def run(self, searches: Iterable[tuple[TreeSearch, Sequence[Mapping[str, Any]]]]) -> Iterator[TreeSearch]:
        """Yield each search when it is finished, in the order of finishing.

        Args:
            searches: Each with the records of its log so far (empty for a new tree). Drawn from lazily, and tried again
                after it had none: an iterator may yield more later, as long as a tree is under way.

        Raises:
            PolicyError: The policy failed too often in a row.
            EnvironmentFault: The environment hung too often.
        """
        thresholds = gc.get_threshold()
        gc.set_threshold(10_000, 10, 10)  # trees live long; what is young still lies in the processor's cache
        try:
            yield from self._run(iter(searches))
        finally:
            gc.set_threshold(*thresholds)

    def _run(self, source: Iterator[tuple[TreeSearch, Sequence[Mapping[str, Any]]]]) -> Iterator[TreeSearch]:
        active, started = 0, time.monotonic()
        last_tick = started
        pending: list[TreeSearch] = []
        before = self.counts.seconds
        while True:
            while active < self._trees:  # one tree at a time: it may depend on the results of those before it
                entry = next(source, None)
                if entry is None:
                    break
                active += 1
                search, records = entry
                search.lane = self._pool.lane(search.environment.one_thread)
                search.lane.submit(search.environment.open, partial(self._post, (search, records)), self._reset_seconds)
            if not active:
                self._note_time(before + time.monotonic() - started)
                return
            try:
                target, value = self._inbox.get_nowait()
            except queue.Empty:
                waiting = time.perf_counter()
                try:  # it wakes without an answer too: hung calls are noticed below, and `tick` shows progress
                    target, value = self._inbox.get(timeout=0.25)
                except queue.Empty:
                    target = None
                self.counts.seconds_waiting += time.perf_counter() - waiting
            if target is not None:
                if target is _CLOSED:  # only now is there room for the environments of another tree
                    active -= 1
                elif type(target) is Simulation:
                    self._advance(target, value, pending)
                elif type(target) is SentRequest:
                    for simulation, answer in self._requests.take(target, value):
                        self._advance(simulation, answer, pending)
                    self._requests.go_on()
                else:
                    self._start(target[0], target[1], value, pending)
                while pending:  # yielded only here: the caller runs while no simulation is half advanced
                    search = pending.pop()
                    self.counts.trees += 1
                    closed = partial(self._post, _CLOSED)
                    search.lane.submit(search.environment.close, closed)
                    search.lane.close()
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
            search.calls = self._calls
            search.open(value)
            self._requests.expect(search.first_request())  # what an outage is probed with before anything was sent
            search.replay(records)
            if self._seconds is not None and self.counts.seconds > self._seconds:
                search.stop_for_time()
            search.issue()
            self._launch(search.in_flight)
        if search.finished:
            over.append(search)

    def _launch(self, simulations: Sequence[Simulation]) -> None:
        for simulation in simulations:
            self._inbox.put((simulation, None))

    def _advance(self, simulation: Simulation, value: Any, over: list[TreeSearch]) -> None:
        """Run a simulation until it has to wait for an answer or for another simulation."""
        coroutine = simulation.coroutine
        if coroutine is None:
            coroutine = simulation.coroutine = simulation.search.start(simulation)
        try:
            coroutine.send(value)
        except StopIteration:
            self._finish(simulation, over)

    def _wake(self, node: PendingNode) -> None:
        """Let the simulations that wait at a history go on, after the present one."""
        # through the inbox, not at once: one of them may wake this one, whose coroutine is still running
        waiters, node.waiters = node.waiters, ()
        self._launch(waiters)

    def _submit(self, simulation: Simulation, state: Any, action: Action) -> Any:
        job = partial(simulation.search.environment.execute, state, action)
        simulation.search.lane.submit(partial(job, replay=False), partial(self._executed, simulation, job))
        return LATER

    def _executed(self, simulation: Simulation, job: Callable[[], Any], value: Any) -> None:
        """Pass on the result of an action; where it needs a replay, start it again with a limit that includes one.

        The first try makes no replay, so that one hanging step is found after the time of one step.
        """
        if isinstance(value, ReplayNeeded):
            limit = self._pool.limit_of(self._reset_seconds, value.calls + 1)
            simulation.search.lane.submit(job, partial(self._post, simulation), limit)
        else:
            self._post(simulation, value)

    def _finish(self, simulation: Simulation, over: list[TreeSearch]) -> None:
        search, counts = simulation.search, self.counts
        if simulation.value is not None:  # what a fault ended is no simulation of the budget
            counts.simulations += 1
        if simulation.cut in ("fault", "unscored"):
            counts.fault(simulation.error or simulation.cut)
        if self._seconds is not None and self.counts.seconds > self._seconds:
            search.stop_for_time()
        self._launch(search.finish(simulation))
        if search.finished:
            over.append(search)


def _execute(simulation: Simulation, state: Any, action: Action) -> Any:
    """Execute an action at once; return the outcome or the fault."""
    try:
        return simulation.search.environment.execute(state, action)
    except BaseException as error:
        return as_fault(error)
