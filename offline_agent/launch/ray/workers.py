"""The crew: its workers, what each of them has, and what is done when one dies. See `cluster.ray`."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from offline_agent import errors
from offline_agent.errors import OfflineAgentError
from offline_agent.launch.ray.worker import DONE, Failure, Hand, Handed, Hello, Place, Reply, Worker, here

LOST = "lost"
_FEWER = 3  # bits by which the company of a job shrinks with every death
_AT_ONCE = ("ConfigError", "DataError")  # another worker would meet the same
_OUTAGE = 8  # jobs given up, beyond one for each that was done, after which something else must be wrong
_TELL_SECONDS = 30.0
_END_SECONDS = 30.0


class CrewError(OfflineAgentError):
    """The cluster refused, or its workers die again and again."""


@dataclass(slots=True, eq=False)
class Job:
    """Something to do.

    Attributes:
        name: For messages.
        payload: What the worker gets. It is read when the job is handed out: whoever takes records may bring it up to
            date, so that a worker that takes it over goes on from there.
        deaths: Workers that died while they had it.
        alone: Those of them that had nothing else.
    """

    name: str
    payload: Any
    deaths: int = 0
    alone: int = 0


class Event(NamedTuple):
    """What came of a job: kind `record` or `done` with what the worker sent, or `lost` with the reason in words."""

    job: Job
    kind: str
    value: Any


@dataclass(frozen=True, slots=True)
class Terms:
    """How a crew works; see the section `ray` of a configuration.

    Attributes:
        workers: How many.
        cpus, gpus: Reserved for each.
        in_flight: Jobs that one has at a time.
        deaths: See `cluster.ray`; also how often a worker may fail in a row before it is left out.
        start_seconds: Longest wait for the first worker.
        silent_seconds: After this long without an answer a worker counts as dead.
        fixed: The cluster will not grow: what does not fit now never will.
    """

    workers: int
    cpus: float = 1.0
    gpus: float = 0.0
    in_flight: int = 64
    deaths: int = 3
    start_seconds: float = 600.0
    silent_seconds: float = 120.0
    fixed: bool = False


@dataclass(slots=True, eq=False)
class _Slot:
    """A place for a worker; when one dies, another takes it.

    Attributes:
        number: From 0.
        actor: The worker; None = none.
        call: What it is being asked; None = nothing.
        since: When it was asked.
        hello: Where it is; None = it is starting.
        host: Where the last one was.
        jobs: What it has, by number.
        fresh: Those of them that it was not told of.
        failures: In a row without anything done between.
        retired: No other takes the place.
        figures: Counts by phase, the last that was heard from each worker that had the place.
        phase: The phase that the present worker is in.
        done, deaths: Jobs done and workers that died in this place.
    """

    number: int
    actor: Any = None
    call: Any = None
    since: float = 0.0
    hello: Hello | None = None
    host: str | None = None
    jobs: dict[int, Job] = field(default_factory=dict)
    fresh: list[int] = field(default_factory=list)
    failures: int = 0
    retired: bool = False
    figures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    phase: str | None = None
    done: int = 0
    deaths: int = 0

    @property
    def label(self) -> str:
        return f"worker {self.number}" + (f" on {self.hello.host}" if self.hello else "")


class Crew:
    """Workers that do jobs. A context manager: in the end its workers are gone.

    Args:
        factory: Makes, in each worker, what does the work; picklable.
        terms: How many workers, of what size, with what patience.
        say: Prints a line for the user.
        sound: Jobs were done in an earlier session: when those that are left kill their workers, that is no outage.
    """

    def __init__(
        self, factory: Callable[[], Hand], terms: Terms, say: Callable[[str], None], sound: bool = False
    ) -> None:
        import ray

        self._ray = ray
        self._factory = factory
        self._terms = terms
        self._say = say
        self._place: Place = here()
        self._slots = [_Slot(number) for number in range(terms.workers)]
        self._numbers = itertools.count()
        self._back: deque[Job] = deque()
        self._source: Iterator[Job] = iter(())
        self._next: Job | None = None
        self._given_up: list[Event] = []
        self._finished = int(sound)
        self._phase = ""
        self._begun = self._told = time.monotonic()
        self._last_failure: OfflineAgentError | None = None
        self.handed_again = 0

    def __enter__(self) -> Crew:
        """Return itself."""
        return self

    def __exit__(self, *details: object) -> None:
        """Take the workers away."""
        for slot in self._slots:
            self._dismiss(slot)

    # -- the work ----------------------------------------------------------------------------------------------------

    def run(self, phase: str, jobs: Iterable[Job], tick: Callable[[], None] | None = None) -> Iterator[Event]:
        """Do the jobs; yield what comes of them, of each job in the order in which it was sent.

        Args:
            phase: What kind of jobs they are; each phase of a crew has another name.
            jobs: Drawn from lazily.
            tick: Called about every half second, from the thread that draws the events.

        Raises:
            CrewError: No worker can be had, or they die again and again.
            OfflineAgentError: What a worker raised and another would raise as well, or the last one raised.
            RuntimeError: A fault of the program in a worker.
        """
        self._phase, self._begun, self._source, self._next = phase, time.monotonic(), iter(jobs), None
        while True:
            self._draw()
            if self._next is None and not self._back and not any(slot.jobs for slot in self._slots):
                break
            self._hire()
            self._hand_out()
            self._ask()
            yield from self._listen()
            yield from self._judge(final=False)
            if tick is not None:
                tick()
        yield from self._judge(final=True)
        self._end_phase()

    def figures(self, phase: str) -> list[dict[str, Any]]:
        """Return what each worker counted in a phase: `worker`, `host`, `done`, `deaths`, and `counts`, a list."""
        return [
            {
                "worker": slot.number,
                "host": slot.host,
                "done": slot.done,
                "deaths": slot.deaths,
                "counts": slot.figures.get(phase, []),
            }
            for slot in self._slots
        ]

    def stop(self) -> int:
        """Ask every worker to end in good order what it does; return how many there are. `run` goes on until then."""
        told = [slot for slot in self._slots if slot.hello is not None]
        for slot in told:
            with contextlib.suppress(self._ray.exceptions.RayError):
                slot.actor.stop.remote()
        return len(told)

    # -- workers -----------------------------------------------------------------------------------------------------

    def _hire(self) -> None:
        """Put a worker in every place that has none."""
        terms = self._terms
        for slot in self._slots:
            if slot.actor is None and not slot.retired:
                if terms.fixed and not self._fits_somewhere():
                    raise CrewError(self._no_room())
                kind = self._ray.remote(Worker).options(
                    num_cpus=terms.cpus, num_gpus=terms.gpus, scheduling_strategy="SPREAD", max_restarts=0,
                    max_task_retries=0,
                )  # fmt: skip
                slot.actor, slot.phase, slot.hello = kind.remote(), None, None
                slot.call, slot.since = slot.actor.set_up.remote(self._factory, self._place), time.monotonic()

    def _fits_somewhere(self) -> bool:
        terms = self._terms
        return any(
            node["Resources"].get("CPU", 0) >= terms.cpus and node["Resources"].get("GPU", 0) >= terms.gpus
            for node in self._ray.nodes()
            if node["Alive"]
        )

    def _no_room(self) -> str:
        terms = self._terms
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        has = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes) or "no node"
        free = self._ray.available_resources()
        return (
            f"there is no room for a worker: each needs {terms.cpus:g} CPUs and {terms.gpus:g} GPUs on one machine, "
            f"the cluster has {has} (free now: {free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs). Ask for less "
            "(ray.cpus, ray.gpus; for training ray.command_cpus, ray.command_gpus), add machines, or wait until others "
            "are done"
        )

    def _dismiss(self, slot: _Slot) -> None:
        actor, slot.actor, slot.call = slot.actor, None, None
        if actor is not None:
            with contextlib.suppress(Exception):  # it may be gone, and Ray with it
                self._ray.kill(actor, no_restart=True)

    # -- handing out -------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        if self._next is None:
            self._next = next(self._source, None)

    def _hand_out(self) -> None:
        ready = [slot for slot in self._slots if slot.hello is not None]
        waiting = [job for job in self._back if not self._give(job, ready)]
        self._back = deque(waiting)
        if waiting and ready:  # they need a worker with fewer jobs: let the least busy one run empty
            ready.remove(min(ready, key=lambda slot: len(slot.jobs)))
        while self._next is not None and self._give(self._next, ready):
            self._next = None
            self._draw()

    def _give(self, job: Job, ready: list[_Slot]) -> bool:
        """Hand a job to the least busy worker that may take it; return whether there was one."""
        able = [slot for slot in ready if len(slot.jobs) < min(map(self._company, [job, *slot.jobs.values()]))]
        if not able:
            return False
        slot = min(able, key=lambda slot: len(slot.jobs))
        number = next(self._numbers)
        slot.jobs[number] = job
        slot.fresh.append(number)
        return True

    def _company(self, job: Job) -> int:
        """Return how many jobs a worker may have that has this one."""
        return max(1, self._terms.in_flight >> (_FEWER * job.deaths))

    def _ask(self) -> None:
        """Ask every worker that is not being asked, and bring it its new jobs."""
        for slot in self._slots:
            if slot.hello is not None and slot.call is None and (slot.jobs or slot.phase == self._phase):
                handed = [Handed(number, slot.jobs[number].payload) for number in slot.fresh]
                slot.fresh = []
                if slot.phase != self._phase:
                    slot.phase = self._phase
                    slot.figures.setdefault(self._phase, []).append({})
                elapsed = time.monotonic() - self._begun
                slot.call, slot.since = slot.actor.exchange.remote(self._phase, elapsed, handed), time.monotonic()

    # -- listening ---------------------------------------------------------------------------------------------------

    def _listen(self) -> Iterator[Event]:
        calls = {slot.call: slot for slot in self._slots if slot.call is not None}
        if not calls:
            raise CrewError("no worker is left") if self._last_failure is None else self._last_failure
        ready, _ = self._ray.wait(list(calls), num_returns=1, timeout=0.5)
        more, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0) if len(calls) > 1 else (ready, [])
        for call in {*ready, *more}:
            yield from self._heard(calls[call], call)
        now = time.monotonic()
        for slot in self._slots:
            if slot.call is not None and slot.hello is not None and now - slot.since > self._terms.silent_seconds:
                self._died(slot, f"it said nothing for {self._terms.silent_seconds:g} s (ray.silent_seconds)", True)
        self._wait_for_room(now)

    def _heard(self, slot: _Slot, call: Any) -> Iterator[Event]:
        slot.call = None
        try:
            answer = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:  # not even its own code ran: versions, imports, pickles
            raise RuntimeError(f"{slot.label}:\n{error}") from error
        except self._ray.exceptions.RayError as error:
            process = isinstance(error, self._ray.exceptions.ActorDiedError)
            self._died(slot, _first_line(error), process)
            return
        if isinstance(answer, Hello):
            slot.hello, slot.host = answer, answer.host
            for note in answer.notes:
                self._say(f"{slot.label}: {note}")
        elif isinstance(answer, Failure):
            self._failed(slot, answer)
        else:
            yield from self._take(slot, answer)

    def _take(self, slot: _Slot, reply: Reply) -> Iterator[Event]:
        slot.figures[self._phase][-1] = reply.figures
        for message in reply.messages:
            job = slot.jobs[message.job]
            if message.kind == DONE:
                del slot.jobs[message.job]
                slot.done += 1
                slot.failures = 0
                self._finished += 1
            yield Event(job, message.kind, message.value)
        if reply.failure is not None:
            self._failed(slot, reply.failure)

    def _wait_for_room(self, now: float) -> None:
        starting = [slot for slot in self._slots if slot.actor is not None and slot.hello is None]
        if not starting or any(slot.hello is not None for slot in self._slots):
            return
        waited = now - min(slot.since for slot in starting)
        if waited > self._terms.start_seconds:
            raise CrewError(
                f"no worker was ready within {self._terms.start_seconds:g} s (ray.start_seconds). Perhaps "
                f"{self._no_room()}"
            )
        if waited > _TELL_SECONDS and now - self._told > _TELL_SECONDS:
            self._told = now
            self._say(f"waiting for {len(starting)} workers to start, {waited:.0f} s so far; {self._no_room()}")

    # -- deaths ------------------------------------------------------------------------------------------------------

    def _died(self, slot: _Slot, reason: str, process: bool) -> None:
        """Take a dead worker's jobs back.

        Args:
            slot: Its place.
            reason: In words.
            process: Its process died, which one of its jobs may have done; where a whole machine is gone they are
                suspected only if that happens to one again and again.
        """
        label, idle = slot.label, not slot.jobs
        lost, alone = list(slot.jobs.values()), len(slot.jobs) == 1
        self._put_back(slot)
        slot.deaths += 1
        slot.failures += idle
        for job in lost:
            job.deaths += process or alone
            job.alone += alone
            if job.alone >= self._terms.deaths:
                self._back.remove(job)
                words = f"{job.alone} workers died while they had nothing else than this, the last one: {reason}"
                self._given_up.append(Event(job, LOST, words))
        what = f"what it had ({len(lost)}) goes to others" if lost else "it had nothing to do"
        self._say(f"{label} died: {reason}; {what}")
        self._retire(slot, CrewError(f"{label} died {slot.failures} times in a row with nothing to do: {reason}"))

    def _failed(self, slot: _Slot, failure: Failure) -> None:
        """Decide what to do about an exception in a worker."""
        kind = getattr(errors, failure.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, OfflineAgentError)):
            raise RuntimeError(f"{slot.label} met a fault of the program:\n{failure.trace}")
        error = kind(f"{slot.label}: {failure.text}")
        if failure.kind in _AT_ONCE:
            raise error
        label, lost = slot.label, len(slot.jobs)
        self._put_back(slot)
        slot.failures = self._terms.deaths if failure.kind == "PolicyError" else slot.failures + 1
        self._say(f"{label} gave up: {failure.text}; what it had ({lost}) goes to others")
        self._retire(slot, error)

    def _put_back(self, slot: _Slot) -> None:
        self._dismiss(slot)
        self._back.extend(slot.jobs.values())
        self.handed_again += len(slot.jobs)
        slot.jobs, slot.fresh, slot.hello = {}, [], None

    def _retire(self, slot: _Slot, error: OfflineAgentError) -> None:
        if slot.failures < self._terms.deaths:
            return
        slot.retired, self._last_failure = True, error
        if all(one.retired for one in self._slots):
            raise error
        self._say(f"worker {slot.number} is left out from now on")

    def _judge(self, final: bool) -> Iterator[Event]:
        """Yield the jobs that were given up; where workers die on whatever they do, that says nothing of the jobs."""
        given_up, done = len(self._given_up), self._finished
        if not given_up:
            return
        if given_up > _OUTAGE + done or (final and not done):
            last = self._given_up[-1]
            raise CrewError(
                f"workers die on whatever they do ({given_up} given up, {done} done); of {last.job.name}: {last.value}."
                " Their own last words are in Ray's logs (/tmp/ray/session_latest/logs). Nothing is lost: run the same "
                "command again to go on"
            )
        if final or done >= given_up:
            self._finished -= 0 if final else given_up  # each speaks for one
            events, self._given_up = self._given_up, []
            yield from events

    def _end_phase(self) -> None:
        """Let every worker come to its end and count for the last time."""
        calls = {}
        for slot in self._slots:
            if slot.hello is not None and slot.phase == self._phase:
                if slot.call is not None:
                    self._ray.wait([slot.call], timeout=_END_SECONDS)
                calls[slot.actor.exchange.remote(self._phase, 0.0, (), True, _END_SECONDS)] = slot
        if calls:
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=_END_SECONDS)
            for call in ready:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    calls[call].figures[self._phase][-1] = self._ray.get(call).figures
        for slot in self._slots:
            slot.call = None if slot.hello is not None else slot.call


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "died" in line or "unavailable" in line or "killed" in line]
    return (told[-1] if told else lines[0] if lines else type(error).__name__)[:300]
