"""Threads in which environments are stepped, each job under a time limit, those of one environment by one thread."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from offline_agent.errors import EnvironmentFault, ends_the_run, in_words

_lock = threading.Lock()
_here = threading.local()
_TICK = 0.02  # seconds between two looks for jobs that overran


class Call:
    """One call under a limit, which may ask several processes one after the other."""

    __slots__ = ("_kill", "over")

    def __init__(self) -> None:
        self.over = False
        self._kill: Callable[[], None] | None = None

    def end(self) -> None:
        """End the call: kill the process that it waits for; no further process is asked."""
        with _lock:
            self.over = True
            kill = self._kill
        if kill is not None:
            kill()

    @contextlib.contextmanager
    def made_here(self) -> Iterator[None]:
        """Make this the thread's present call as long as the context lasts."""
        before = getattr(_here, "call", None)
        _here.call = self
        try:
            yield
        finally:
            _here.call = before

    def begin(self, kill: Callable[[], None]) -> bool:
        """Set how to kill the process that is waited for from now on; return False where the call was ended already."""
        with _lock:
            self._kill = kill
            return not self.over

    def done(self) -> None:
        """Record that no process is waited for any more."""
        with _lock:
            self._kill = None


def present() -> Call | None:
    """Return the present call of this thread; None where it has no limit."""
    return getattr(_here, "call", None)


Job = tuple[Callable[[], Any], Callable[[Any], None], float | None]
"""The job, the callback for its result, and its time limit in seconds (None = none)."""
Jobs = queue.SimpleQueue[Job | None]


class EnvPool:
    """Threads that step environments, each job under a time limit.

    A Python thread cannot be killed: a job that overruns is answered with an `EnvironmentFault`, its thread is left to
    itself (its result is thrown away) and another takes its place. Where it waits for an isolated environment, that
    environment's process is killed, and the thread ends.

    Many libraries bind an object to the thread that made it (`sqlite3`, Playwright, event loops). So what belongs
    together is submitted to a `lane`, whose jobs one thread makes.

    Args:
        workers: Number of jobs made at once; 0 makes every job at once in the caller's thread, without a limit.
        time_limit: Seconds a job may take; None = unlimited.
        most_hung: Number of hung jobs after which the run stops, where they are more than one in a hundred.
    """

    def __init__(self, workers: int = 4, time_limit: float | None = 30.0, most_hung: int = 256) -> None:
        self.workers = workers
        self.time_limit = time_limit
        self._most_hung = most_hung
        self._jobs: Jobs = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(workers)  # of the lanes
        self._lanes: weakref.WeakSet[Lane] = weakref.WeakSet()
        self._running: dict[int, tuple[float, float, Callable[[Any], None], Call, Jobs]] = {}
        self._next = 0
        self.hung = 0
        self.busy_seconds = 0.0
        for _ in range(workers):
            self._start_thread(self._jobs)

    def lane(self, own_thread: bool) -> Lane:
        """Return a lane for the jobs of one tree or attempt.

        Args:
            own_thread: Its jobs are made by one thread, one after the other; False lets any thread of the pool make
                them, several at once.
        """
        lane = Lane(self, own_thread and self.workers > 0)
        self._lanes.add(lane)
        return lane

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None], limit: float | None = None) -> None:
        """Run `job`; `done` gets its result, or the exception it raised, from any thread.

        Args:
            job: The call to make.
            done: Called once, with the result.
            limit: Seconds this job may take; None = the pool's own limit.
        """
        if self.workers:
            self._jobs.put((job, done, self.time_limit if limit is None else limit))
        else:
            started = time.perf_counter()
            result = attempt(job)
            self.busy_seconds += time.perf_counter() - started
            done(result)

    def limit_of(self, reset_seconds: float | None, calls: int) -> float | None:
        """Return the limit of a job that resets an environment and then makes calls, each as long as the pool allows.

        Args:
            reset_seconds: Limit of opening and resetting it; None = as long as a call.
            calls: Number of calls.

        Returns:
            Seconds; None = the pool's own.
        """
        each = self.time_limit
        if not calls or each is None:
            return None if calls else reset_seconds
        return (each if reset_seconds is None else reset_seconds) + calls * each

    def reap(self) -> None:
        """Answer jobs that overran their limit with a fault. Call it now and then.

        Raises:
            EnvironmentFault: Too many jobs hung.
        """
        now, late = time.monotonic(), []
        with self._lock:
            for number, (started, limit, done, call, jobs) in list(self._running.items()):
                if now - started > limit:
                    del self._running[number]
                    late.append((limit, done, call, jobs))
        for limit, done, call, jobs in late:
            self.hung += 1
            call.end()
            if jobs is not self._jobs:
                self._turns.release()
            self._start_thread(jobs)
            keys = "limits.step_seconds, limits.reset_seconds, limits.critic_seconds"
            done(EnvironmentFault(f"no answer within {limit:g} s ({keys})"))
        if self.hung > max(self._most_hung, self._next // 100):  # a long run may meet as many on a sound one
            raise EnvironmentFault(
                f"{self.hung} of {self._next} calls of the environment, or of a critic, hung: it is not fit to be used"
            )

    def close(self) -> None:
        """Let each thread end after its present job."""
        for _ in range(self.workers + self.hung):
            self._jobs.put(None)
        for lane in list(self._lanes):
            lane.close()

    def _start_thread(self, jobs: Jobs) -> None:
        threading.Thread(target=self._work, args=(jobs,), daemon=True).start()

    def _work(self, jobs: Jobs) -> None:
        in_lane = jobs is not self._jobs
        while (item := jobs.get()) is not None:
            job, done, limit = item
            call = Call()
            if in_lane:
                self._turns.acquire()
            with self._lock:
                number = self._next = self._next + 1
                self._running[number] = (time.monotonic(), float("inf") if limit is None else limit, done, call, jobs)
            started = time.perf_counter()
            with call.made_here():
                result = attempt(job)
            with self._lock:
                self.busy_seconds += time.perf_counter() - started
                own = self._running.pop(number, None) is not None
            if not own:
                return  # `reap` answered the job, gave its turn back and started another thread
            if in_lane:
                self._turns.release()
            done(result)


class Lane:
    """Jobs that one thread makes, one after the other; made by `EnvPool.lane`.

    After a job that hung another thread goes on: what the first one opened must not be used any more
    (`Episode.usable_here`).

    Args:
        pool: The pool, whose limits hold here, and which makes at most `workers` jobs of all lanes at once.
        own_thread: See `EnvPool.lane`.
    """

    def __init__(self, pool: EnvPool, own_thread: bool) -> None:
        self._pool = pool
        self._own_thread = own_thread
        self._jobs: Jobs = queue.SimpleQueue()
        self._started = False
        self._end = weakref.finalize(self, self._jobs.put, None)  # a lane that nobody holds lets its thread end, too

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None], limit: float | None = None) -> None:
        """Do as `EnvPool.submit`, in this lane's thread."""
        if not self._own_thread:
            self._pool.submit(job, done, limit)
            return
        self._jobs.put((job, done, self._pool.time_limit if limit is None else limit))
        if not self._started:
            self._started = True
            self._pool._start_thread(self._jobs)

    def result(self, job: Callable[[], Any], limit: float | None = None) -> Any:
        """Wait for a job; return its result, or an `EnvironmentFault` for its exception. Raises as `EnvPool.reap`."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.submit(job, answers.put, limit)
        while True:
            try:
                return answers.get(timeout=_TICK)
            except queue.Empty:
                self._pool.reap()

    def close(self) -> None:
        """Let its thread end after the jobs that were submitted."""
        self._end()


def attempt(job: Callable[..., Any], *arguments: Any) -> Any:
    """Return the job's result, or an `EnvironmentFault` for its exception."""
    try:
        return job(*arguments)
    except BaseException as error:
        return as_fault(error)


def as_fault(error: BaseException) -> EnvironmentFault:
    """Return `error` itself if it is an `EnvironmentFault`, else one that names it and has it as its cause.

    Raises:
        BaseException: `error`, where it ends the run.
    """
    if ends_the_run(error):
        raise error
    if isinstance(error, EnvironmentFault):
        return error
    wrapped = EnvironmentFault(in_words(error))
    wrapped.__cause__ = error
    return wrapped
