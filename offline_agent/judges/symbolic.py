"""math-verify in the sandbox: nothing that a text makes SymPy do may hold the run, or reach anything outside."""

from __future__ import annotations

import functools
import json
import os
import threading
from dataclasses import dataclass
from importlib import resources
from typing import Any

from offline_agent.sandbox import Limits, Sandbox, SandboxError, Session, shared

_LIMITS = Limits(cpu_seconds=60, wall_seconds=120.0, memory_mb=1024, processes=8)
"""Of the session: starting it imports SymPy on a busy machine; each comparison has its own time."""

_ROUND_TRIP = 20.0  # seconds for the answer beside the comparison's own


@dataclass(frozen=True, slots=True)
class SymbolicComparison:
    """The outcome of comparing two mathematical texts.

    Attributes:
        equal: Whether they mean the same; False where the answer could not be read at all.
        answer, gold: The expressions that each was read as.
        error: Why they could not be compared; None where they could.
    """

    equal: bool = False
    answer: tuple[str, ...] = ()
    gold: tuple[str, ...] = ()
    error: str | None = None


class _Worker:
    """A session of the sandbox, started when first needed, ended and forgotten when it breaks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None

    def ask(self, answer: str, gold: str, seconds: float) -> dict[str, Any]:
        request = {"op": "do", "what": "call", "target": "symbolic_process:judge", "kwargs": {},
                   "args": [answer, gold, seconds]}  # fmt: skip
        with self._lock:
            while True:
                new = self._session is None or self._session.ended
                try:
                    said = self._started().ask(request, seconds + _ROUND_TRIP)["body"]
                    if said is None:
                        raise SandboxError("it ended without an answer")
                    found: dict[str, Any] = json.loads(said["value"])
                    return found
                except (SandboxError, TypeError, KeyError, ValueError) as error:
                    self._stop()
                    if new:  # an older one may have ended before it was asked
                        return {"error": f"the math-verify process broke: {error}"}

    def _started(self) -> Session:
        if self._session is None or self._session.ended:
            sandbox = shared()
            if sandbox.level == "command":  # a container need not have math-verify
                sandbox = Sandbox()
            code = (resources.files("offline_agent.judges") / "symbolic_process.py").read_text(encoding="utf-8")
            session = sandbox.session(limits=_LIMITS)
            said = session.ask({"op": "load", "name": "symbolic_process", "code": code})["body"]
            if said is None or "value" not in said:
                session.close()
                raise SandboxError(f"math-verify cannot be loaded in the sandbox: {said}")
            self._session = session
        return self._session

    def _stop(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None


_WORKER = _Worker()
_OF_PARENTS: list[_Worker] = []  # kept: to close its session would end it for the parent too


def _renew() -> None:
    global _WORKER
    _OF_PARENTS.append(_WORKER)
    _WORKER = _Worker()


os.register_at_fork(after_in_child=_renew)  # a fork must not talk on its parent's session, nor wait for its lock


def compare(answer: str, gold: str, seconds: float = 10.0) -> SymbolicComparison:
    """Return whether two mathematical texts mean the same; safe to call from any thread.

    Each comparison runs in a process of its own inside the sandbox (without network and files; 1 GiB of memory).

    Args:
        answer: Text that holds the answer.
        gold: The right answer; one that cannot be read is an error.
        seconds: Time limit, after which the comparison is an error.
    """
    try:
        return _compared(answer, gold, seconds)
    except _Failed as error:
        return SymbolicComparison(error=str(error))


class _Failed(Exception):
    """A comparison failed; raised, so that it is tried again: a busy machine's time limit says nothing for good."""


@functools.lru_cache(4096)
def _compared(answer: str, gold: str, seconds: float) -> SymbolicComparison:
    outcome = _WORKER.ask(answer, gold, seconds)
    if outcome.get("error") is not None:
        raise _Failed(str(outcome["error"]))
    return SymbolicComparison(bool(outcome["equal"]), tuple(outcome["answer"]), tuple(outcome["gold"]))
