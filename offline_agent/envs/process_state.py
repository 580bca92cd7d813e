"""State of the process that an environment may change by accident: compared, and restored.

Code of an environment may set a umask, change directory, replace a function of `json` or install a signal handler. All
of that holds for the whole process, the run's own files and signals included. An isolated environment cannot do it.
"""

from __future__ import annotations

import builtins
import copy
import json
import locale
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

_MODULES = (builtins, copy, json, json.decoder, json.encoder, os, os.path, random, time)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_STREAMS = ("stdout", "stderr")


class ProcessState:
    """The state of the process at a point in time.

    That is umask, directory, locale, signal handlers, streams, and the functions of basic modules. Variables of the
    environment, `sys.path` and warning filters are left alone: libraries set them when they load.
    """

    def __init__(self) -> None:
        self._umask = _umask()
        self._directory = os.getcwd()
        self._locale = locale.setlocale(locale.LC_ALL)
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._streams = {name: getattr(sys, name) for name in _STREAMS}
        self._modules = [(module, dict(vars(module))) for module in _MODULES]

    def put_back(self) -> list[str]:
        """Undo the changes since; return a text for each.

        Signal handlers are put back from the main thread alone: Python allows it nowhere else.
        """
        return list(self._put_back())

    def _put_back(self) -> Iterator[str]:
        if _umask() != self._umask:
            yield f"umask {_umask():03o} instead of {self._umask:03o}"
            os.umask(self._umask)
        if _directory() != self._directory:
            yield f"the current directory {_directory()} instead of {self._directory}"
            os.chdir(self._directory)
        if (now := locale.setlocale(locale.LC_ALL)) != self._locale:
            yield f"the locale {now} instead of {self._locale}"
            locale.setlocale(locale.LC_ALL, self._locale)
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is not handler:
                yield f"another handler of {number.name}"
                signal.signal(number, handler)
        for name, stream in self._streams.items():
            if getattr(sys, name) is not stream:
                yield f"another sys.{name}"
                setattr(sys, name, stream)
        for module, before in self._modules:
            yield from _restored(module, before)


def _restored(module: Any, before: dict[str, Any]) -> Iterator[str]:
    now = vars(module)
    for name, value in before.items():
        if now.get(name) is not value and callable(value):
            yield f"another {module.__name__}.{name}"
            setattr(module, name, value)


def _umask() -> int:
    """Return the process's umask; read where Linux shows it, since setting it to learn it lets other threads see it."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass  # no /proc here
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "(removed)"
