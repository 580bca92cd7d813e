"""An interpreter in the sandbox whose variables last; its snapshot is the list of the cells that it ran.

A copy has the cells and no process. When it runs its next cell it gets a process that has run the same cells again:
cells are short, and the interpreter begins the same each time (hash seed, `random.seed(0)`). The printed text is
compared with what it was the first time; cells that print another text when they are repeated are a fault of the
branch, not a state that differs without anyone knowing.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Any

from offline_agent.errors import EnvironmentFault
from offline_agent.sandbox import Limits, SandboxError, Session, shared

LIMITS = Limits(cpu_seconds=5, wall_seconds=20.0, output_kb=64)
_ALIVE = 24
_SHOWN = 2000


class Notebook:
    """An interpreter; for one thread at a time. `copy.deepcopy` copies its state.

    Attributes:
        cells: The cells that made its state, with a hash of what each printed.
    """

    def __init__(self) -> None:
        self.cells: tuple[tuple[str, str], ...] = ()
        self._session: Session | None = None
        self._lock = threading.Lock()

    def run(self, code: str) -> str:
        """Run a cell; return what it printed, the value of its last expression, and its error.

        Raises:
            EnvironmentFault: The sandbox does not work, or earlier cells did not repeat in a new process.
        """
        with self._lock:
            try:
                session = self._running()
                printed, lives = _reply_text(session.ask({"op": "cell", "code": code}))
            except SandboxError as error:
                self._end()
                raise EnvironmentFault(f"math: {error}") from error
            if lives:
                self.cells = (*self.cells, (code, _hash(printed)))
                _pool.used(self)
            else:
                self._end()
                self.cells = ()
                printed += "\nIts variables are lost."
        return printed

    def close(self) -> None:
        """End its process; the state stays."""
        with self._lock:
            self._end()

    def close_unless_busy(self) -> bool:
        """End its process, unless it is running a cell; return whether it was ended."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._end()
            return True
        finally:
            self._lock.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> Notebook:
        twin = Notebook()
        twin.cells = self.cells
        return twin

    def _running(self) -> Session:
        if self._session is not None and not self._session.ended:
            return self._session
        session = shared().session(limits=LIMITS)
        for number, (code, printed) in enumerate(self.cells):
            if _hash(_reply_text(session.ask({"op": "cell", "code": code}))[0]) != printed:
                session.close()
                raise EnvironmentFault(f"math: cell {number + 1} printed something else when it was run again")
        self._session = session
        return session

    def _end(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class _Pool:
    """The notebooks that have a process; the one that was used longest ago loses it when there are too many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: OrderedDict[int, Notebook] = OrderedDict()

    def used(self, notebook: Notebook) -> None:
        with self._lock:
            self._alive[id(notebook)] = notebook
            self._alive.move_to_end(id(notebook))
            for key, other in list(self._alive.items())[: max(0, len(self._alive) - _ALIVE)]:
                if other is not notebook and other.close_unless_busy():
                    del self._alive[key]


_pool = _Pool()


def _reply_text(reply: dict[str, Any]) -> tuple[str, bool]:
    """Return a cell's text, and whether the interpreter lives."""
    text = str(reply["stdout"]) + str(reply["stderr"])
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}\n[cut here: {_SHOWN} of {len(text)} characters shown]\n"
    body = reply["body"]
    if body is None:
        reasons = {
            "cpu": f"it used {LIMITS.cpu_seconds} s of CPU time", "wall": f"it took {LIMITS.wall_seconds:g} s",
            "memory": f"it used {LIMITS.memory_mb} MiB", "output": f"it printed more than {LIMITS.output_kb} KiB",
        }  # fmt: skip
        return f"The interpreter ended: {reasons.get(reply['status'], 'the program ended it')}.", False
    if isinstance(body, dict) and "raised" in body:
        where = f" ({body['where']})" if body.get("where") else ""
        return f"{text}{body['raised']}: {body['text']}{where}".strip(), True
    return text.strip() or "(no output)", True


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
