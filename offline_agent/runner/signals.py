"""Signals that end a command cleanly, and its supervisor, which reports a working process that ends in silence.

`os._exit(0)` in a tool, a crash in a C library or the kernel's out-of-memory killer end a process silently; no handler
inside it can run. So the process of the command forks before it loads anything large: the child works, the parent waits
and passes signals on. Both are in one process group, so Ctrl-C and Ctrl-Z of a terminal reach both. The child is killed
when the parent dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from offline_agent import crash_notes
from offline_agent.errors import Interruption
from offline_agent.runner.pipeline import FAILED
from offline_agent.runner.terminal import say

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


def supervised(name: str, work: Callable[[], int]) -> int:
    """Do the work in a child process; return its exit status, or 1 with a message if the child ended early.

    Args:
        name: Name of the command, for messages.
        work: The work; returns the exit status.

    Returns:
        In the child the status of the work, with which the interpreter exits; in the parent that of the command.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    notes, parent = crash_notes.Notes(), os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)  # a signal now stays pending for the parent
    child = os.fork()
    if child == 0:
        crash_notes.end_with(parent)
        crash_notes.notes = notes
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return _work(work, notes)

    passed = set[int]()

    def pass_on(number: int, frame: object) -> None:
        # the child counts the first one only; of two at once another thread may take both, and the main one sleeps on
        if number == signal.SIGINT or not passed:
            os.kill(child, number)  # the process id is valid until `waitpid` returns
        passed.add(number)

    for number in _STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _, ended = os.waitpid(child, 0)
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)  # the child is gone
    return _judge(name, notes, os.waitstatus_to_exitcode(ended))


def _work(work: Callable[[], int], notes: crash_notes.Notes) -> int:
    """Do the work and note its status; print the traceback of an exception. Only foreign code raises SystemExit."""
    own = os.getpid()
    try:
        status = work()
    except SystemExit:
        raise
    except BaseException:
        say(traceback.format_exc())
        status = FAILED
    if os.getpid() == own:  # a process that a tool forked may return here too
        notes.status = status
    return status


def _judge(name: str, notes: crash_notes.Notes, code: int) -> int:
    """Return the status of the command, given the exit code of the child (minus the number of a signal)."""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
    status = notes.status
    if status is not None:
        if code != status:
            say(f"{name}: the work is complete, but its process {how} while it was closing")
        return status
    calls = notes.under_way()
    lines = [f"{name}: the process that did the work {how} in the middle of it, without a message (os._exit, a crash "
             "of a library, out of memory, or a kill)"]  # fmt: skip
    if calls:
        lines.append(f"  under way: {'; '.join(calls)}")
        lines.append(
            "  a smaller batch.tokens or batch.max_length takes less memory" if "train" in name else
            "  with env.isolate=process, a tool runs in a process of its own, and its crash loses one branch"
        )  # fmt: skip
    if notes.again:
        lines.append(f"  finished work is kept; to go on: {notes.again}")
    say("\n".join(lines))
    return FAILED
