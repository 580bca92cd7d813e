"""Calls of environments: errors wrapped, ended by another thread at a limit, counted for the conformance suite.

A thread cannot be killed, but a process can. Where a call that overran its limit waits for an isolated environment, the
environment's process is killed; the call then raises, and the thread is free again.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from offline_agent import crash_notes
from offline_agent.envs.validation import clean_text
from offline_agent.errors import EnvironmentFault, OfflineAgentError, Refusal, ToolError, ends_the_run, in_words
from offline_agent.records import Task

if TYPE_CHECKING:
    from offline_agent.envs.description import EnvDescription

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


class Boundary:
    """The boundary to the code of one environment: its errors become faults, what it returns becomes clean text.

    Args:
        spec: The environment.
        environment: The instance.

    Attributes:
        task: The task that it was reset for, named in messages.
    """

    def __init__(self, spec: EnvDescription, environment: Any) -> None:
        self.spec = spec
        self.environment = environment
        self.task: Task | None = None

    @property
    def task_id(self) -> str:
        """Identifier of the task; `-` before the first reset."""
        return "-" if self.task is None else self.task.task_id

    def call(self, method: str, arguments: Mapping[str, Any], passed: tuple[type[Exception], ...] = ()) -> Any:
        """Call a method of the environment; errors of the classes `passed` come through, all others are wrapped."""
        notes, watch = crash_notes.notes, self.spec.watch
        if watch is not None:
            watch.begin()
        if notes is not None:
            notes.begin(f"{method} of {self.spec.name}, task {self.task_id}")
        try:
            value = getattr(self.environment, method)(**arguments)
            value = asyncio.run(value) if inspect.iscoroutine(value) else value
            if watch is not None and isinstance(value, Refusal):
                watch.raised(method, ToolError(value))
            elif watch is not None:
                watch.returned(method)
            return value
        except BaseException as error:
            if watch is not None:
                watch.raised(method, error)
            if isinstance(error, passed):
                raise
            raise self.fault(f"{method}()", error, bool(passed)) from error
        finally:
            if notes is not None:
                notes.end()

    def read(self, attribute: str, otherwise: Any) -> Any:
        """Return an attribute of the environment; `otherwise` where it has none."""
        try:
            return getattr(self.environment, attribute, otherwise)
        except BaseException as error:
            raise self.fault(attribute, error) from error

    def fault(self, what: str, error: BaseException, tool: bool = False) -> EnvironmentFault:
        """Return an error of the environment's code as a fault; raise it where it ends the run.

        Args:
            what: What raised.
            error: The error.
            tool: It was a tool, which may raise other errors for bad input.
        """
        if ends_the_run(error):
            raise error
        if isinstance(error, EnvironmentFault):
            return error
        rule = "; tools tell the policy of bad input by ValueError, TypeError, LookupError or "
        rule += "offline_agent.ToolError, any other error is a fault"
        rule = self.spec.mend(rule) if tool else ""
        return EnvironmentFault(f"{self.spec.name}: {what} raised {in_words(error)} (task {self.task_id}){rule}")

    def text(self, value: Any) -> str:
        """Return an observation as clean text, cut to the limit."""
        try:
            text = to_text(value)
        except BaseException as error:
            raise self.fault("turning an observation into text", error) from error
        limit = self.spec.max_observation_chars
        if len(text) > limit:
            return clean_text(text[:limit]) + f"\n[cut here: {limit} of {len(text)} characters shown]"
        return clean_text(text)


def to_text(value: Any) -> str:
    """Return a tool's result as text: str as it is, dict and list as JSON, None as "", bytes as UTF-8."""
    if isinstance(value, str):
        return str(value)
    if value is None:
        return ""
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


def shown(error: BaseException) -> str:
    """Return an error's traceback without the frames of this package that led to the call."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def _ours(file: str) -> bool:
    ours = tuple(f"offline_agent/envs/{name}.py" for name in ("base", "calls", "episode"))
    return file.replace("\\", "/").endswith(ours)
