"""Notes of what a command waits for; they survive a crash, with the command that resumes the run and the exit status.

They are in memory that the supervising and the working process share (`runner.signals`). Without a supervisor there
are no notes, and a note costs one comparison.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import signal
import sys
import threading
from collections.abc import Iterator
from time import monotonic

_SLOTS, _WIDTH = 64, 256
_AGAIN = 1 + _SLOTS * _WIDTH
_SIZE = _AGAIN + 8192
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_LIBRARY = ctypes.CDLL(None) if sys.platform.startswith("linux") else None  # loaded before any fork


class Notes:
    """Notes in shared memory: made before a fork, written in the child, read in the parent.

    Attributes:
        command: Process id of the command.
    """

    def __init__(self) -> None:
        self.command = os.getpid()
        self._memory = mmap.mmap(-1, _SIZE)
        self._slots = itertools.count()
        self._own = threading.local()
        self._since: dict[int, float] = {}

    def begin(self, text: str) -> None:
        """Note a call that this thread begins, or how far the one that it noted last has come."""
        data = text.encode("utf-8", "replace")[: _WIDTH - 1]
        at = self._slot()
        self._since.setdefault(at, monotonic())
        self._memory[at : at + len(data) + 1] = data + b"\0"

    def end(self) -> None:
        """Note the end of this thread's call."""
        at = self._slot()
        self._memory[at] = 0
        self._since.pop(at, None)

    def present(self) -> str:
        """Return the call that this thread noted; "" without one."""
        at = self._slot()
        return _text(self._memory[at : at + _WIDTH])

    def under_way(self) -> list[str]:
        """Return the calls that have begun and not ended."""
        texts = (_text(self._memory[at : at + _WIDTH]) for at in range(1, _AGAIN, _WIDTH))
        return [text for text in texts if text]

    def waiting(self) -> list[tuple[str, float]]:
        """Return the calls of this process that have not ended and the seconds since they began, longest first."""
        now = monotonic()
        begun = sorted(list(self._since.items()), key=lambda entry: entry[1])
        return [(_text(self._memory[at : at + _WIDTH]), now - since) for at, since in begun]

    @property
    def again(self) -> str:
        """The command that resumes the run; "" before the run directory is open."""
        return _text(self._memory[_AGAIN:])

    @again.setter
    def again(self, text: str) -> None:
        data = text.encode("utf-8", "replace")[: _SIZE - _AGAIN - 1]
        self._memory[_AGAIN : _AGAIN + len(data) + 1] = data + b"\0"

    @property
    def status(self) -> int | None:
        """The exit status of the work; None = the work did not end."""
        return self._memory[0] - 1 if self._memory[0] else None

    @status.setter
    def status(self, status: int) -> None:
        self._memory[0] = status + 1

    def _slot(self) -> int:
        try:
            return self._own.at
        except AttributeError:
            self._own.at = 1 + next(self._slots) % _SLOTS * _WIDTH
            return self._own.at


notes: Notes | None = None
"""The notes of this process; None = it has no supervisor."""


@contextlib.contextmanager
def noted(text: str) -> Iterator[None]:
    """Note a call of this thread while the block lasts; then the one that it is part of."""
    if notes is None:
        yield
        return
    outer = notes.present()
    notes.begin(text)
    try:
        yield
    finally:
        if outer:
            notes.begin(outer)
        else:
            notes.end()


def note(text: str) -> None:
    """Note how far the call of this thread has come."""
    if notes is not None:
        notes.begin(text)


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends (Linux only); called right after a fork.

    Args:
        parent: Process id of the parent; if it has ended already, this process ends at once.
    """
    if _LIBRARY is not None:
        _LIBRARY.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "replace")
