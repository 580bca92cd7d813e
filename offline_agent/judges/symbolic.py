"""Mathematical texts compared in the sandbox: nothing that they make SymPy do holds the run, or reaches outside."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Mapping
from importlib import resources
from typing import Any

from offline_agent.sandbox import Limits, Sandbox, SandboxError, Session, shared

_LIMITS = Limits(cpu_seconds=60, wall_seconds=120.0, memory_mb=1024, processes=8)
"""Of the session: starting it imports SymPy on a busy machine; each comparison has its own time."""

_ROUND_TRIP = 20.0  # seconds for the answer beside the comparison's own
_BUSY = 10.0  # times its seconds of the processor that a comparison may take on the clock
_WORKERS = max(2, min(4, os.cpu_count() or 1))  # processes at most, each with SymPy


class NotCompared(Exception):
    """Two texts could not be compared, whatever the answer; a busy machine's time limit says nothing for good."""


class _Pool:
    """Sessions of the sandbox with SymPy, each for one thread at a time: a slow answer keeps its own and no other."""

    def __init__(self) -> None:
        self.free = threading.BoundedSemaphore(_WORKERS)
        self.idle: list[Session] = []

    def ask(self, answer: str, gold: str, seconds: float) -> dict[str, Any]:
        """Return what a session says, the one that was used last; wait while all are taken."""
        wall = seconds * _BUSY
        request = {"op": "do", "what": "call", "target": "offline_agent.judges.symbolic_process:judge", "kwargs": {},
                   "args": [answer, gold, seconds, wall]}  # fmt: skip
        with self.free:
            while True:
                session: Session | None = None
                with contextlib.suppress(IndexError):
                    session = self.idle.pop()
                new = session is None
                try:
                    session = session or started()
                    reply = session.ask(request, wall + _ROUND_TRIP)["body"]
                    if reply is None:
                        raise SandboxError("it ended without an answer")
                    found: dict[str, Any] = json.loads(reply["value"])
                    self.idle.append(session)
                    return found
                except (SandboxError, TypeError, KeyError, ValueError) as error:
                    if session is not None:
                        session.close()
                    if new:  # an older one may have ended before it was asked
                        return {"error": f"the process of symbolic comparisons broke: {error}"}


def started() -> Session:
    """Return a new session with SymPy and the programs that compare."""
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
    return session


_POOL = _Pool()
_INHERITED: list[_Pool] = []  # kept: to close its sessions would end them for the parent too


def _renew() -> None:
    global _POOL
    _INHERITED.append(_POOL)
    _POOL = _Pool()


os.register_at_fork(after_in_child=_renew)  # a fork must not talk on its parent's sessions, nor wait for its threads


@functools.lru_cache(4096)
def compare(answer: str, gold: str, seconds: float = 3.0) -> Mapping[str, Any]:
    """Return whether two mathematical texts mean the same; safe to call from any thread.

    Each comparison runs in a process of its own inside the sandbox (without network and files; 1 GiB of memory).

    Args:
        answer: Text that holds the answer.
        gold: The right answer; one that cannot be read, or not within the limits, is an error.
        seconds: Time of the processor; where the answer takes longer, it is wrong.

    Returns:
        `equal`, with `answer` and `gold`, what each was read as; or with the `reason` for which the answer ended the
        comparison (too slow, too deep): it is wrong.

    Raises:
        NotCompared: Whatever the answer; it is tried again when it is asked for again.
    """
    outcome = _POOL.ask(answer, gold, seconds)
    if outcome.get("error") is not None:
        raise NotCompared(str(outcome["error"]))
    return outcome
