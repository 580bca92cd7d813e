"""Notes that survive a crash: calls under way, the command that goes on, and whether the work was finished.

They lie in memory that the supervising process shares with the one that works (`runner.supervisor`). Without a
supervisor there are none, and noting costs one comparison.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import signal
import sys
import threading

_SLOTS, _WIDTH = 64, 256
_AGAIN = 1 + _SLOTS * _WIDTH
_SIZE = _AGAIN + 8192
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Notes:
    """Notes in shared memory: made before a fork, written in the child, read in the parent.

    Attributes:
        command: Id of the process that made them, the command's own: the one to be stopped.
    """

    def __init__(self) -> None:
        self.command = os.getpid()
        self._memory = mmap.mmap(-1, _SIZE)
        self._slots = itertools.count()
        self._own = threading.local()

    def begin(self, text: str) -> None:
        """Note the call that this thread makes now."""
        data = text.encode("utf-8", "replace")[: _WIDTH - 1]
        at = self._slot()
        self._memory[at : at + len(data) + 1] = data + b"\0"

    def end(self) -> None:
        """Note that this thread's call is over."""
        self._memory[self._slot()] = 0

    def under_way(self) -> list[str]:
        """Return the calls that were begun and not ended."""
        texts = (_text(self._memory[at : at + _WIDTH]) for at in range(1, _AGAIN, _WIDTH))
        return [text for text in texts if text]

    @property
    def again(self) -> str:
        """The command that goes on with the run; "" before there is a run."""
        return _text(self._memory[_AGAIN:])

    @again.setter
    def again(self, text: str) -> None:
        data = text.encode("utf-8", "replace")[: _SIZE - _AGAIN - 1]
        self._memory[_AGAIN : _AGAIN + len(data) + 1] = data + b"\0"

    @property
    def status(self) -> int | None:
        """The exit status that the work ended with; None where it did not come to its end."""
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
"""Those of this process; None where nobody supervises it."""


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends, where Linux offers that; called right after a fork.

    Args:
        parent: Process id of the parent; where it has ended already, this process ends at once.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "replace")
