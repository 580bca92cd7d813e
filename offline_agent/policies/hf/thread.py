"""The hf policy as a queue: a thread that does one step after another while there is something to do."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from offline_agent.errors import PolicyError
from offline_agent.policies.base import Done, ProposeRequest

if TYPE_CHECKING:
    from offline_agent.policies.hf.policy import HFPolicy


class HFEngine:
    """A thread that keeps the policy's slots busy.

    Attributes:
        busy_seconds: Seconds spent computing.
    """

    def __init__(self, policy: HFPolicy) -> None:
        self._policy = policy
        self._condition = threading.Condition()
        self._closed = False
        self._awake = False
        self.busy_seconds = 0.0
        self._since = policy.counts.seconds
        self._thread = threading.Thread(target=self._work, name="hf-engine", daemon=True)
        self._thread.start()

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """See `Engine.submit`."""
        if self._closed:
            done(PolicyError("the engine is closed"))
            return
        self._policy.submit(request, done, self)
        with self._condition:
            self._awake = True
            self._condition.notify()
        if self._closed:  # closed in between: nobody would answer
            self._policy.cancel(self, PolicyError("the engine was closed before this request was answered"))

    def close(self) -> None:
        """See `Engine.close`."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._policy.cancel(self, PolicyError("the engine was closed before this request was answered"))

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._awake and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
                self._awake = False
            try:
                while not self._closed and self._policy.pump():
                    self.busy_seconds = self._policy.counts.seconds - self._since
            except Exception as error:  # a callback's: nobody would answer what is queued
                self._closed = True
                self._policy.cancel(self, PolicyError(f"the engine stopped: {type(error).__name__}: {error}"))
                raise
