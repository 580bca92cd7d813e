"""A small process above the one that works: it sees that the work came to its end, and tells where it did not.

Foreign code that calls `os._exit(0)`, a crash in a C library or the kernel's out-of-memory killer end a process without
a word; no handler inside it can tell. The command's own process therefore forks before anything heavy is loaded: the
child works, the parent waits and passes signals on. Both are in one process group, so a terminal's Ctrl-C and Ctrl-Z
reach both; the child is killed when the parent is.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

from offline_agent import crash_notes
from offline_agent.runner.pipeline import FAILED
from offline_agent.runner.terminal import say

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def supervised(name: str, work: Callable[[], int]) -> int:
    """Return the exit status of the work, done in a child process; 1, with a message, where it ended in the middle.

    Args:
        name: The command's, for messages.
        work: What to do; returns the exit status.

    Returns:
        In the child the work's status, for the interpreter to exit with; in the parent the command's.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    notes, parent = crash_notes.Notes(), os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # one that comes now is kept for the parent
    child = os.fork()
    if child == 0:
        crash_notes.end_with(parent)
        crash_notes.notes = notes
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return _work(work, notes)

    def pass_on(number: int, frame: object) -> None:
        os.kill(child, number)  # until `waitpid` has returned it exists, if only as a zombie

    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup's
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _, ended = os.waitpid(child, 0)
    for number in _PASSED_ON:
        signal.signal(number, signal.SIG_IGN)  # there is nobody left to pass it on to
    return _judge(name, notes, os.waitstatus_to_exitcode(ended))


def _work(work: Callable[[], int], notes: crash_notes.Notes) -> int:
    """Do the work and note its status; what it raises is told here, SystemExit excepted: nobody here raises it."""
    own = os.getpid()
    try:
        status = work()
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        status = FAILED
    if os.getpid() == own:  # not in a fork of foreign code that comes by here
        notes.status = status
    return status


def _judge(name: str, notes: crash_notes.Notes, code: int) -> int:
    """Return the command's status, given how its child ended: its exit code, or minus the number of a signal."""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
    status = notes.status
    if status is not None:
        if code != status:
            say(f"{name}: the work is complete, but its process {how} while it was closing")
        return status
    calls = notes.under_way()
    lines = [f"{name}: the process that did the work {how} in the middle of it, without a word (os._exit, a crash of "
             "a library, out of memory, or somebody's kill)"]  # fmt: skip
    if calls:
        lines.append(f"  under way: {'; '.join(calls)}")
        lines.append("  with env.isolate=process, tools run in processes of their own, and a crash costs one branch")
    if notes.again:
        lines.append(f"  what was done is kept; to go on: {notes.again}")
    say("\n".join(lines))
    return FAILED
