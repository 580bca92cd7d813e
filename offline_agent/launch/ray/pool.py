"""Pool of Ray workers: bounded hand-out of items, streamed results, nothing lost when workers die.

The pool does not know what its items are. Each worker gets a bounded number of items, drawn lazily, and the driver
takes records and results back. When a worker dies, its items go to other workers in the state that the driver knows, so
at most the records that the dead worker had not sent are repeated.

An item that kills every worker is found by elimination. An item that was with a dying worker shares its next worker
with an eighth of the items, and after two deaths with none. An item that was alone with a dying worker `deaths` times
is given up. Ray's own retries cannot do this; docs/cluster.md says what was tried.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from offline_agent import errors
from offline_agent.errors import OfflineAgentError
from offline_agent.launch.ray import cluster
from offline_agent.launch.ray.work_items import LOST, ItemEvent, PoolError, PoolSettings, WorkItem
from offline_agent.launch.ray.worker import (
    DONE,
    Executor,
    Failure,
    HandedItem,
    RayWorker,
    Ready,
    WorkerReply,
    driver_context,
)

_SHARE_BITS = 3  # each death divides the number of items that share a worker by 2**3
_FATAL = ("ConfigError", "DataError")  # every other worker would raise the same
_OUTAGE = 8  # items given up, beyond one for each item done, at which the cluster is at fault and not the items
_TELL_SECONDS = 30.0
_END_SECONDS = 30.0


@dataclass(slots=True, eq=False)
class _Seat:
    """A seat of the pool; when its worker dies, a new one takes the seat.

    Attributes:
        number: From 0.
        actor: The worker; None = none.
        call: The pending Ray call; None = none.
        since: Time of that call, monotonic seconds.
        ready: The answer of a worker that is set up; None = it is starting.
        host: Host of the last worker.
        items: Items of the worker, by number.
        fresh: Numbers of the items that were not sent yet.
        failures: Failures in a row, without an item done in between.
        retired: No new worker takes the seat.
        figures: By phase, the last counts of each worker that had the seat.
        phase: The phase that the present worker is in.
        done, deaths: Items done and workers that died in this seat.
    """

    number: int
    actor: Any = None
    call: Any = None
    since: float = 0.0
    ready: Ready | None = None
    host: str | None = None
    items: dict[int, WorkItem] = field(default_factory=dict)
    fresh: list[int] = field(default_factory=list)
    failures: int = 0
    retired: bool = False
    figures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    phase: str | None = None
    done: int = 0
    deaths: int = 0

    @property
    def label(self) -> str:
        return f"worker {self.number}" + (f" on {self.ready.host}" if self.ready else "")


class WorkerPool:
    """Workers that process items. As a context manager, it removes its workers at the end.

    Args:
        factory: Makes the executor in each worker; picklable.
        settings: Size and limits.
        say: Prints a line for the user.
        proven: An earlier session processed items: if the items that are left kill their workers, it is no outage.
    """

    def __init__(
        self,
        factory: Callable[[], Executor],
        settings: PoolSettings,
        say: Callable[[str], None],
        proven: bool = False,
    ) -> None:
        import ray

        self._ray = ray
        self._factory = factory
        self._settings = settings
        self._say = say
        self._context = driver_context()
        self._seats = [_Seat(number) for number in range(settings.workers)]
        self._numbers = itertools.count()
        self._returned: deque[WorkItem] = deque()
        self._source: Iterator[WorkItem] = iter(())
        self._next_item: WorkItem | None = None
        self._given_up: list[ItemEvent] = []
        self._finished = int(proven)
        self._phase = ""
        self._begun = self._told = time.monotonic()
        self._last_failure: OfflineAgentError | None = None
        self.handed_again = 0

    def __enter__(self) -> WorkerPool:
        """Return itself."""
        return self

    def __exit__(self, *details: object) -> None:
        """Remove the workers."""
        for seat in self._seats:
            self._dismiss(seat)

    # -- items ----------------------------------------------------------------------------------------------------

    def run(self, phase: str, items: Iterable[WorkItem], tick: Callable[[], None] | None = None) -> Iterator[ItemEvent]:
        """Process the items; yield their events, those of one item in the order in which they were sent.

        Args:
            phase: The kind of items; every phase of a pool has a name of its own.
            items: Drawn lazily.
            tick: Called about every half second, in the thread that iterates.

        Raises:
            PoolError: No worker can start, or workers die again and again.
            OfflineAgentError: A worker raised an error that any worker would raise, or the last worker raised one.
            RuntimeError: A bug raised an exception in a worker.
        """
        self._phase, self._begun, self._source, self._next_item = phase, time.monotonic(), iter(items), None
        while True:
            self._draw()
            if self._next_item is None and not self._returned and not any(seat.items for seat in self._seats):
                break
            self._hire()
            self._hand_out()
            self._ask()
            yield from self._listen()
            yield from self._give_up(final=False)
            if tick is not None:
                tick()
        yield from self._give_up(final=True)
        self._end_phase()

    def figures(self, phase: str) -> list[dict[str, Any]]:
        """Return the counts of each seat in a phase: `worker`, `host`, `done`, `deaths`, and `counts`, a list."""
        return [
            {"worker": seat.number, "counts": seat.figures.get(phase, []),
             **{name: getattr(seat, name) for name in ("host", "done", "deaths")}}
            for seat in self._seats
        ]  # fmt: skip

    def stop(self) -> int:
        """Ask every worker to end cleanly; return how many were asked. `run` continues until they have ended."""
        told = [seat for seat in self._seats if seat.ready is not None]
        for seat in told:
            with contextlib.suppress(self._ray.exceptions.RayError):
                seat.actor.stop.remote()
        return len(told)

    # -- workers -----------------------------------------------------------------------------------------------------

    def _hire(self) -> None:
        """Start a worker for every empty seat."""
        settings = self._settings
        for seat in self._seats:
            if seat.actor is None and not seat.retired:
                if settings.fixed and not cluster.fits(settings.cpus, settings.gpus):
                    raise PoolError(cluster.no_room(settings.cpus, settings.gpus))
                # no restarts by Ray: a restarted actor would get the payloads of its first start, without later records
                kind = self._ray.remote(RayWorker).options(
                    num_cpus=settings.cpus, num_gpus=settings.gpus, scheduling_strategy="SPREAD", max_restarts=0,
                    max_task_retries=0,
                )  # fmt: skip
                seat.actor, seat.phase, seat.ready = kind.remote(), None, None
                seat.call, seat.since = seat.actor.set_up.remote(self._factory, self._context), time.monotonic()

    def _dismiss(self, seat: _Seat) -> None:
        actor, seat.actor, seat.call = seat.actor, None, None
        if actor is not None:
            with contextlib.suppress(Exception):  # it may be gone, and Ray with it
                self._ray.kill(actor, no_restart=True)

    # -- handing out -------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        if self._next_item is None:
            self._next_item = next(self._source, None)

    def _hand_out(self) -> None:
        ready = [seat for seat in self._seats if seat.ready is not None]
        waiting = [item for item in self._returned if not self._give(item, ready)]
        self._returned = deque(waiting)
        if waiting and ready:  # they need a worker with fewer items, so the least busy one gets no new items
            ready.remove(min(ready, key=lambda seat: len(seat.items)))
        while self._next_item is not None and self._give(self._next_item, ready):
            self._next_item = None
            self._draw()

    def _give(self, item: WorkItem, ready: list[_Seat]) -> bool:
        """Hand an item to the least busy worker that may take it; return whether there was one."""
        able = [seat for seat in ready if len(seat.items) < min(map(self._most_beside, [item, *seat.items.values()]))]
        if not able:
            return False
        seat = min(able, key=lambda seat: len(seat.items))
        number = next(self._numbers)
        seat.items[number] = item
        seat.fresh.append(number)
        return True

    def _most_beside(self, item: WorkItem) -> int:
        """Return the largest number of items that a worker with this item may have."""
        return max(1, self._settings.in_flight >> (_SHARE_BITS * item.deaths))

    def _ask(self) -> None:
        """Call `exchange` on every worker without a pending call, with its new items."""
        for seat in self._seats:
            if seat.ready is not None and seat.call is None and (seat.items or seat.phase == self._phase):
                handed = [HandedItem(number, seat.items[number].payload) for number in seat.fresh]
                seat.fresh = []
                if seat.phase != self._phase:
                    seat.phase = self._phase
                    seat.figures.setdefault(self._phase, []).append({})
                elapsed = time.monotonic() - self._begun
                seat.call, seat.since = seat.actor.exchange.remote(self._phase, elapsed, handed), time.monotonic()

    # -- listening ---------------------------------------------------------------------------------------------------

    def _listen(self) -> Iterator[ItemEvent]:
        calls = {seat.call: seat for seat in self._seats if seat.call is not None}
        if not calls:
            raise PoolError("no worker is left") if self._last_failure is None else self._last_failure
        ready, _ = self._ray.wait(list(calls), num_returns=1, timeout=0.5)
        more, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0) if len(calls) > 1 else (ready, [])
        for call in {*ready, *more}:
            yield from self._heard(calls[call], call)
        now = time.monotonic()
        for seat in self._seats:
            if seat.call is not None and seat.ready is not None and now - seat.since > self._settings.silent_seconds:
                self._died(seat, f"it said nothing for {self._settings.silent_seconds:g} s (ray.silent_seconds)", True)
        self._wait_for_room(now)

    def _heard(self, seat: _Seat, call: Any) -> Iterator[ItemEvent]:
        seat.call = None
        try:
            answer = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:  # the actor's code did not run: versions, imports, pickles
            raise RuntimeError(f"{seat.label}:\n{error}") from error
        except self._ray.exceptions.RayError as error:
            process = isinstance(error, self._ray.exceptions.ActorDiedError)
            self._died(seat, _first_line(error), process)
            return
        if isinstance(answer, Ready):
            seat.ready, seat.host = answer, answer.host
            for note in answer.notes:
                self._say(f"{seat.label}: {note}")
        elif isinstance(answer, Failure):
            self._failed(seat, answer)
        else:
            yield from self._take(seat, answer)

    def _take(self, seat: _Seat, reply: WorkerReply) -> Iterator[ItemEvent]:
        seat.figures[self._phase][-1] = reply.figures
        for message in reply.messages:
            item = seat.items[message.item]
            if message.kind == DONE:
                del seat.items[message.item]
                seat.done += 1
                seat.failures = 0
                self._finished += 1
            yield ItemEvent(item, message.kind, message.value)
        if reply.failure is not None:
            self._failed(seat, reply.failure)

    def _wait_for_room(self, now: float) -> None:
        starting = [seat for seat in self._seats if seat.actor is not None and seat.ready is None]
        if not starting or any(seat.ready is not None for seat in self._seats):
            return
        waited = now - min(seat.since for seat in starting)
        if waited > self._settings.start_seconds:
            raise PoolError(
                f"no worker was ready within {self._settings.start_seconds:g} s (ray.start_seconds). Perhaps "
                f"{cluster.no_room(self._settings.cpus, self._settings.gpus)}"
            )
        if waited > _TELL_SECONDS and now - self._told > _TELL_SECONDS:
            self._told = now
            room = cluster.no_room(self._settings.cpus, self._settings.gpus)
            self._say(f"waiting for {len(starting)} workers to start, {waited:.0f} s so far; {room}")

    # -- deaths ------------------------------------------------------------------------------------------------------

    def _died(self, seat: _Seat, reason: str, process: bool) -> None:
        """Take the items of a dead worker back.

        Args:
            seat: The seat of the worker.
            reason: Why it died, in words.
            process: The process died, so one of its items may be the cause. When a whole machine is gone, an item is
                suspected only if it was alone with its worker.
        """
        label, idle = seat.label, not seat.items
        lost, alone = list(seat.items.values()), len(seat.items) == 1
        self._put_back(seat)
        seat.deaths += 1
        seat.failures += idle
        for item in lost:
            item.deaths += process or alone
            item.alone += alone
            if item.alone >= self._settings.deaths:
                self._returned.remove(item)
                words = f"{item.alone} workers died while they had nothing else than this, the last one: {reason}"
                self._given_up.append(ItemEvent(item, LOST, words))
        what = f"what it had ({len(lost)}) goes to others" if lost else "it had nothing to do"
        self._say(f"{label} died: {reason}; {what}")
        self._retire(seat, PoolError(f"{label} died {seat.failures} times in a row with nothing to do: {reason}"))

    def _failed(self, seat: _Seat, failure: Failure) -> None:
        """Raise an error that every worker would meet; otherwise give the items to other workers."""
        kind = getattr(errors, failure.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, OfflineAgentError)):
            raise RuntimeError(f"{seat.label} met a fault of the program:\n{failure.trace}")
        error = kind(f"{seat.label}: {failure.text}")
        if failure.kind in _FATAL:
            raise error
        label, lost = seat.label, len(seat.items)
        self._put_back(seat)
        seat.failures = self._settings.deaths if failure.kind == "PolicyError" else seat.failures + 1
        self._say(f"{label} gave up: {failure.text}; what it had ({lost}) goes to others")
        self._retire(seat, error)

    def _put_back(self, seat: _Seat) -> None:
        self._dismiss(seat)
        self._returned.extend(seat.items.values())
        self.handed_again += len(seat.items)
        seat.items, seat.fresh, seat.ready = {}, [], None

    def _retire(self, seat: _Seat, error: OfflineAgentError) -> None:
        if seat.failures < self._settings.deaths:
            return
        seat.retired, self._last_failure = True, error
        if all(one.retired for one in self._seats):
            raise error
        self._say(f"worker {seat.number} is left out from now on")

    def _give_up(self, final: bool) -> Iterator[ItemEvent]:
        """Yield `lost` for given-up items; raise PoolError where workers die on every item: an outage."""
        given_up, done = len(self._given_up), self._finished
        if not given_up:
            return
        if given_up > _OUTAGE + done or (final and not done):
            last = self._given_up[-1]
            raise PoolError(
                f"workers die on whatever they do ({given_up} given up, {done} done); of {last.item.name}: "
                f"{last.value}. Their own last words are in Ray's logs (/tmp/ray/session_latest/logs). Nothing is "
                "lost: run the same command again to go on"
            )
        if final or done >= given_up:
            self._finished -= 0 if final else given_up  # a done item vouches for one lost item, and only once
            events, self._given_up = self._given_up, []
            yield from events

    def _end_phase(self) -> None:
        """Close the feeds of all workers and collect their last figures."""
        calls = {}
        for seat in self._seats:
            if seat.ready is not None and seat.phase == self._phase:
                if seat.call is not None:
                    self._ray.wait([seat.call], timeout=_END_SECONDS)
                calls[seat.actor.exchange.remote(self._phase, 0.0, (), True, _END_SECONDS)] = seat
        if calls:
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=_END_SECONDS)
            for call in ready:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    calls[call].figures[self._phase][-1] = self._ray.get(call).figures
        for seat in self._seats:
            seat.call = None if seat.ready is not None else seat.call


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "died" in line or "unavailable" in line or "killed" in line]
    return (told[-1] if told else lines[0] if lines else type(error).__name__)[:300]
