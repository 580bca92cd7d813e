"""Boundary to the code of an environment: its errors become faults, what it returns becomes clean text.

That code may set a umask, change directory or install a signal handler, which holds for the whole process, the run's
own files and signals included: `ProcessState` compares and restores it. An isolated environment cannot do it. Variables
that are added are left alone: libraries set them when they load.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from offline_agent import crash_notes, pictures
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
        if len(text) > limit and pictures.OBJECT in text:
            return clean_text(_cut(pictures.split(text), limit))
        if len(text) > limit:
            return clean_text(text[:limit]) + f"\n[cut here: {limit} of {len(text)} characters shown]"
        return clean_text(text)


def _cut(parts: Sequence[str], limit: int) -> str:
    """Return a text with all its pictures, whose words are cut to the limit."""
    out, left, size = [], limit, sum(map(len, parts[::2]))
    for place, part in enumerate(parts):
        out.append(pictures.mark_of(part) if place % 2 else part[:left])
        left -= 0 if place % 2 else min(len(part), left)
    return "".join(out) + (f"\n[cut here: {limit} of {size} characters shown]" if size > limit else "")


def to_text(value: Any) -> str:
    """Return a tool's result as text: str as it is, dict and list as JSON, None as "", bytes as UTF-8.

    A list of content parts with pictures becomes a text with marks (`pictures.of_parts`).
    """
    if isinstance(value, str):
        return pictures.disarmed(str(value))
    if (shown := pictures.of_parts(value)) is not None:
        return shown
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


# -- state of the process ----------------------------------------------------------------------------------------------

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SHOWN = 5  # names of one kind


class _Group(NamedTuple):
    """Things of one kind that the process has.

    Attributes:
        detail: Text of a change; `{}` stands for the names.
        read: Returns name → value.
        write: Gives a name its value again.
    """

    detail: str
    read: Callable[[], Mapping[Any, Any]]
    write: Callable[[Any, Any], object]


def _umask() -> dict[str, str]:
    """Return the process's umask where Linux shows it; setting it to learn it would let other threads see it."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return {line.split()[1]: "" for line in status if line.startswith("Umask:")}
    return {}


def _directory() -> dict[str, str]:
    with contextlib.suppress(FileNotFoundError):
        return {os.getcwd(): ""}
    return {}


_TABLE = (
    _Group("another umask than {}", _umask, lambda mask, _: os.umask(int(mask, 8))),
    _Group("another directory than {}", _directory, lambda path, _: os.chdir(path)),
    _Group("another handler of {}", lambda: {one.name: signal.getsignal(one) for one in _SIGNALS},
           lambda name, handler: signal.signal(signal.Signals[name], handler)),
    _Group("another value, or none, of the variables {}", lambda: dict(os.environ), os.environ.__setitem__),
)  # fmt: skip


class ProcessState:
    """The state of the process at a point in time: what stands in `_TABLE`."""

    def __init__(self) -> None:
        self._before = [dict(group.read()) for group in _TABLE]

    def put_back(self) -> list[str]:
        """Undo the changes since; return a text for each, which says where one cannot be undone.

        Signal handlers are put back from the main thread alone: Python allows it nowhere else.
        """
        pairs = zip(_TABLE, self._before, strict=True)
        return [detail for group, before in pairs for detail in _put_back(group, before)]


def _put_back(group: _Group, before: Mapping[Any, Any]) -> Iterator[str]:
    now = group.read()
    changed = [name for name, value in before.items() if name not in now or now[name] != value]
    if not changed:
        return
    names = ", ".join(map(str, changed[:_SHOWN])) + (f" and {len(changed) - _SHOWN} more" if changed[_SHOWN:] else "")
    detail = group.detail.format(names)
    try:
        for name in changed:
            group.write(name, before[name])
    except (OSError, ValueError) as error:
        detail += f" (which cannot be undone: {error})"
    yield detail
