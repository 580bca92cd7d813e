"""Threads in which environments are stepped, each job under a time limit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from offline_agent.envs.isolation.waiting import Call
from offline_agent.errors import EnvironmentFault, ends_the_run, in_words

Job = tuple[Callable[[], Any], Callable[[Any], None], float | None]
"""The job, the callback for its result, and its time limit in seconds (None = none)."""


class EnvPool:
    """Threads that step environments, each job under a time limit.

    A Python thread cannot be killed: a job that overruns is answered with an `EnvironmentFault`, its thread is left to
    itself (its result is thrown away) and another takes its place. Where it waits for an isolated environment, that
    environment's process is killed, and the thread ends.

    Args:
        workers: Number of threads; 0 runs every job at once in the caller's thread, without a limit.
        time_limit: Seconds a job may take; None = unlimited.
        most_hung: Number of hung jobs after which the run stops, where they are more than one in a hundred.
    """

    def __init__(self, workers: int = 4, time_limit: float | None = 30.0, most_hung: int = 256) -> None:
        self.workers = workers
        self.time_limit = time_limit
        self._most_hung = most_hung
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: dict[int, tuple[float, float, Callable[[Any], None], Call]] = {}
        self._next = 0
        self.hung = 0
        self.busy_seconds = 0.0
        for _ in range(workers):
            self._start_thread()

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
            for number, (started, limit, done, call) in list(self._running.items()):
                if now - started > limit:
                    del self._running[number]
                    late.append((limit, done, call))
        for limit, done, call in late:
            self.hung += 1
            call.end()
            self._start_thread()
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

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done, limit = item
            call = Call()
            with self._lock:
                number = self._next = self._next + 1
                self._running[number] = (time.monotonic(), float("inf") if limit is None else limit, done, call)
            started = time.perf_counter()
            with call.made_here():
                result = attempt(job)
            with self._lock:
                self.busy_seconds += time.perf_counter() - started
                ours = self._running.pop(number, None) is not None
            if not ours:
                return  # `reap` answered the job and started another thread
            done(result)


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
