"""Calls with a time limit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from offline_agent.envs.pool import Call

T = TypeVar("T")


class Worker:
    """A thread that makes one call after the other, so that a call can be given a time limit.

    One that exceeds its limit takes its thread with it; the next call gets another.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Call, Callable[[], object]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._started = False

    def call(self, call: Callable[[], T], seconds: float) -> T | None:
        """Return the call's result, or None where it has not returned within the seconds; its exception is raised here.

        A worker whose call ran past its limit must not be used again.
        """
        if not self._started:
            # Both queues go as arguments: the thread must not keep the worker alive.
            threading.Thread(target=_serve, args=(self._calls, self._answers), daemon=True).start()
            self._started = True
        limited = Call()
        self._calls.put((limited, call))
        try:
            value, error = self._answers.get(timeout=seconds)
        except queue.Empty:
            limited.end()
            self._calls.put(None)
            return None
        if error is not None:
            raise error
        return cast(T, value)

    def close(self) -> None:
        """Let the thread end."""
        self._calls.put(None)


def _serve(calls: queue.SimpleQueue[Any], answers: queue.SimpleQueue[Any]) -> None:
    while (item := calls.get()) is not None:
        limited, call = item
        try:
            with limited.made_here():
                answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))
