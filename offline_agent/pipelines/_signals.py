"""Signals that end a command, so that it can end in good order."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Stopped(BaseException):
    """SIGTERM or SIGINT: end in good order; the same command goes on later."""


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """Turn signals that end a job into `Stopped`, so that files are closed in good order.

    A job of Slurm's gets SIGTERM, or SIGUSR1 and SIGUSR2 as it was asked for, often several times over: only the first
    counts, and leaves a mark for the job's script.
    """
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        if stopped and number != signal.SIGINT:
            return
        stopped = True
        mark = os.environ.get("OFFLINE_AGENT_STOPPED")
        if mark and number != signal.SIGINT:
            with contextlib.suppress(OSError):
                Path(mark).touch()
        raise Stopped(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
