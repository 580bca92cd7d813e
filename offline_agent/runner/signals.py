"""Signals that end a command, turned into an exception so that it ends cleanly."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from offline_agent.errors import Interruption

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SAME = 1.0  # seconds: a second signal within it is the first one again, sent to the process group as well


class Stopped(Interruption):
    """A signal ends the command cleanly; the same command resumes the run."""


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """Raise `Stopped` on signals that end a job, so that files are closed cleanly.

    A Slurm job gets SIGTERM, or SIGUSR1 and SIGUSR2, often several times: only the first one counts, and it creates
    the file that the script of the job looks for. A second Ctrl-C interrupts the closing, unless it comes within a
    second: a terminal sends Ctrl-C to the supervising process too, which passes it on.
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

    hung_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # a run under nohup continues without its terminal
    before = {number: signal.signal(number, stop) for number in _STOPPING if number != signal.SIGHUP or hung_up}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
