"""Calls under a time limit, which another thread can end.

A thread cannot be killed, but a process can. Where a call that overran its limit waits for an isolated environment, the
environment's process is killed; the call then raises, and the thread is free again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

_lock = threading.Lock()
_here = threading.local()


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
