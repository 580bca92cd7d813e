"""Calls that a thread makes under a time limit, so that another thread can end what it waits for.

A thread cannot be killed, but a process can: where a call overran its limit and an isolated environment is what it
waits for, the environment's process is killed, the call raises, and the thread is free.
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
        """End it: kill the process that it waits for; the next that it would ask is not asked."""
        with _lock:
            self.over = True
            kill = self._kill
        if kill is not None:
            kill()

    @contextlib.contextmanager
    def made_here(self) -> Iterator[None]:
        """Have what this thread waits for, as long as the context lasts, ended with the call."""
        before = getattr(_here, "call", None)
        _here.call = self
        try:
            yield
        finally:
            _here.call = before

    def begin(self, kill: Callable[[], None]) -> bool:
        """Note how to kill what is waited for from now on; return False where the call is over already."""
        with _lock:
            self._kill = kill
            return not self.over

    def done(self) -> None:
        """Note that nothing is waited for any more."""
        with _lock:
            self._kill = None


def present() -> Call | None:
    """Return the call that this thread is making; None where it is under no limit."""
    return getattr(_here, "call", None)
