"""State of the process that an environment may change by accident: compared, and restored.

Code of an environment may set a umask, change directory or install a signal handler. That holds for the whole process,
the run's own files and signals included. An isolated environment cannot do it. Variables that are added are left alone:
libraries set them when they load.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

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
