"""Boundary to the code of an environment: its errors become faults, what it returns becomes clean text."""

from __future__ import annotations

import asyncio
import inspect
import json
import traceback
from collections.abc import Mapping
from typing import Any

from offline_agent import crash_notes
from offline_agent.envs.description import EnvDescription
from offline_agent.envs.tools.validation import clean_text
from offline_agent.errors import EnvironmentFault, Refusal, ToolError, ends_the_run, in_words
from offline_agent.records import Task


class Boundary:
    """The boundary to one instance.

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
        told = f"{self.spec.name}: {what} raised {in_words(error)} (task {self.task_id})"
        return EnvironmentFault(told + rule if tool else told)

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
    while trace is not None and trace.tb_next is not None and _is_package_frame(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def _is_package_frame(file: str) -> bool:
    own = tuple(f"offline_agent/envs/{name}.py" for name in ("base", "boundary", "episode"))
    return file.replace("\\", "/").endswith(own)
