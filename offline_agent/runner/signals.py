"""Signals that end a command, so that it can end in good order."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from offline_agent.errors import Interruption

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SAME = 1.0  # seconds within which a second signal is the same one, that came by another way


class Stopped(Interruption):
    """A signal ends the command in good order; the same command goes on later."""


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """Turn signals that end a job into `Stopped`, so that files are closed in good order.

    A job of Slurm's gets SIGTERM, or SIGUSR1 and SIGUSR2 as it was asked for, often several times over: only the first
    counts, and leaves a mark for the job's script. A second Ctrl-C ends what the first began to close, unless it comes
    within a second: a terminal sends it to the supervising process too, which passes it on.
    """
    stopped: float | None = None

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        now = time.monotonic()
        if stopped is not None and (number != signal.SIGINT or now - stopped < _SAME):
            return
        stopped = now
        mark = os.environ.get("OFFLINE_AGENT_STOPPED")
        if mark and number != signal.SIGINT:
            with contextlib.suppress(OSError):
                Path(mark).touch()
        raise Stopped(signal.Signals(number).name)

    hung_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # nohup's run goes on without its terminal
    before = {number: signal.signal(number, stop) for number in _STOPPING if number != signal.SIGHUP or hung_up}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
