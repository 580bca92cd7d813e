"""A watch over the calls of an environment, for the conformance suite: which succeed, and how to end a check."""

from __future__ import annotations

import threading
import traceback
from collections import Counter

from offline_agent.errors import OfflineAgentError


class GivenUp(OfflineAgentError):
    """The check that makes this call ran out of time; nobody waits for it any more."""


class CallWatch:
    """Notes of each method of an environment whether its calls succeed; ends threads that were given up.

    Attributes:
        succeeded: Calls that returned, by method.
        failed: Calls that raised, by method.
        errors: The last error of each method that raised.
    """

    def __init__(self) -> None:
        self.succeeded: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.errors: dict[str, BaseException] = {}
        self._given_up: set[threading.Thread] = set()

    def give_up(self, thread: threading.Thread) -> None:
        """End a thread at its next call."""
        self._given_up.add(thread)

    def begin(self) -> None:
        """Take note that a call is about to be made; raises GivenUp in a thread that was given up."""
        if self._given_up and threading.current_thread() in self._given_up:
            raise GivenUp("the check was given up")

    def returned(self, method: str) -> None:
        """Note that a call succeeded."""
        self.succeeded[method] += 1

    def raised(self, method: str, error: BaseException) -> None:
        """Note that a call raised."""
        self.failed[method] += 1
        self.errors[method] = error


def shown(error: BaseException) -> str:
    """Return an error's traceback without the frames of this package that led to the call."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def _ours(file: str) -> bool:
    return file.replace("\\", "/").endswith(("offline_agent/envs/episode.py", "offline_agent/envs/base.py"))
