"""Mathematical texts compared in the sandbox: nothing that they make SymPy do holds the run, or reaches outside."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from offline_agent.sandbox import Limits, Sandbox, SandboxError, Session, shared

_LIMITS = Limits(cpu_seconds=60, wall_seconds=120.0, memory_mb=1024, processes=8)
"""Of the session: starting it imports SymPy on a busy machine; each comparison has its own time."""

_ROUND_TRIP = 20.0  # seconds for the answer beside the comparison's own
_BUSY = 10.0  # times its seconds of the processor that a comparison may take on the clock
_WORKERS = max(2, min(4, os.cpu_count() or 1))  # processes at most, each with SymPy


@dataclass(frozen=True, slots=True)
class SymbolicComparison:
    """The outcome of comparing two mathematical texts.

    Attributes:
        equal: Whether they mean the same; False where the answer could not be read at all.
        answer, gold: What each was read as.
        reason: What the answer did to the comparison (too slow, too deep) where that ended it: it is wrong.
        error: Why they could not be compared, whatever the answer; None where they could.
    """

    equal: bool = False
    answer: str = ""
    gold: str = ""
    reason: str | None = None
    error: str | None = None


class _Worker:
    """A session of the sandbox, started when first needed, ended and forgotten when it breaks; for one thread."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def ask(self, answer: str, gold: str, seconds: float) -> dict[str, Any]:
        wall = seconds * _BUSY
        request = {"op": "do", "what": "call", "target": "offline_agent.judges.symbolic_process:judge", "kwargs": {},
                   "args": [answer, gold, seconds, wall]}  # fmt: skip
        while True:
            new = self._session is None or self._session.ended
            try:
                reply = self.started().ask(request, wall + _ROUND_TRIP)["body"]
                if reply is None:
                    raise SandboxError("it ended without an answer")
                found: dict[str, Any] = json.loads(reply["value"])
                return found
            except (SandboxError, TypeError, KeyError, ValueError) as error:
                self._stop()
                if new:  # an older one may have ended before it was asked
                    return {"error": f"the process of symbolic comparisons broke: {error}"}

    def started(self) -> Session:
        """Return the session, which is started where there is none."""
        if self._session is None or self._session.ended:
            sandbox = shared()
            if sandbox.level == "command":  # a container need not have latex2sympy2_extended
                sandbox = Sandbox()
            session = sandbox.session(limits=_LIMITS)
            for name in ("equality", "formulas", "symbolic_process"):  # each after those that it imports
                code = (resources.files("offline_agent.judges") / f"{name}.py").read_text(encoding="utf-8")
                reply = session.ask({"op": "load", "name": f"offline_agent.judges.{name}", "code": code})["body"]
                if reply is None or "value" not in reply:
                    session.close()
                    raise SandboxError(f"{name} cannot be loaded in the sandbox: {reply}")
            self._session = session
        return self._session

    def _stop(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None


class _Pool:
    """Workers, each for one thread at a time: a slow answer keeps its own and no other."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(_WORKERS)
        self._idle: list[_Worker] = []

    @contextlib.contextmanager
    def worker(self) -> Iterator[_Worker]:
        """Take a worker, the one that was used last; wait while all are taken."""
        with self._free:
            try:
                one = self._idle.pop()
            except IndexError:
                one = _Worker()
            try:
                yield one
            finally:
                self._idle.append(one)


_POOL = _Pool()
_INHERITED: list[_Pool] = []  # kept: to close its sessions would end them for the parent too


def _renew() -> None:
    global _POOL
    _INHERITED.append(_POOL)
    _POOL = _Pool()


os.register_at_fork(after_in_child=_renew)  # a fork must not talk on its parent's sessions, nor wait for its threads


def compare(answer: str, gold: str, seconds: float = 3.0) -> SymbolicComparison:
    """Return whether two mathematical texts mean the same; safe to call from any thread.

    Each comparison runs in a process of its own inside the sandbox (without network and files; 1 GiB of memory).

    Args:
        answer: Text that holds the answer.
        gold: The right answer; one that cannot be read, or not within the limits, is an error.
        seconds: Time of the processor; where the answer takes longer, it is wrong.
    """
    try:
        return _compared(answer, gold, seconds)
    except _Failed as error:
        return SymbolicComparison(error=str(error))


class _Failed(Exception):
    """A comparison failed; raised, so that it is tried again: a busy machine's time limit says nothing for good."""


@functools.lru_cache(4096)
def _compared(answer: str, gold: str, seconds: float) -> SymbolicComparison:
    with _POOL.worker() as worker:
        outcome = worker.ask(answer, gold, seconds)
    if outcome.get("error") is not None:
        raise _Failed(str(outcome["error"]))
    return SymbolicComparison(**outcome)
