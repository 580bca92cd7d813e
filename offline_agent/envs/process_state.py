"""State of the process that an environment may change by accident: compared, and restored.

Code of an environment may set a umask, change directory, replace a function of `json` or install a signal handler. All
of that holds for the whole process, the run's own files and signals included. An isolated environment cannot do it.

Left alone is what is added, since libraries set variables, paths and filters when they load, and the state of `random`,
which every draw changes: checks that repeat actions find an environment that depends on it.
"""

from __future__ import annotations

import builtins
import copy
import decimal
import gc
import json
import locale
import logging
import operator
import os
import random
import resource
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

_MODULES = {module.__name__: module
            for module in (builtins, copy, json, json.decoder, json.encoder, os, os.path, random, time)}  # fmt: skip
_OTHERS = {
    "os": ("environ",), "sys": ("stdout", "stderr", "path", "excepthook"), "warnings": ("showwarning",),
}  # fmt: skip
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SHOWN = 5  # names of one kind
_LIMITS = {name: number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}


class _Group(NamedTuple):
    """Things of one kind that the process has.

    Attributes:
        detail: Text of a change; `{}` stands for the names.
        read: Returns name → value.
        write: Gives a name its value again.
        same: Whether two values are no change.
    """

    detail: str
    read: Callable[[], Mapping[Any, Any]]
    write: Callable[[Any, Any], object]
    same: Callable[[Any, Any], bool] = operator.eq


def _one(detail: str, read: Callable[[], Any], write: Callable[[Any], object]) -> _Group:
    return _Group(detail, lambda: {"": read()}, lambda _, value: write(value))


def _attributes() -> dict[str, Any]:
    named = {f"{name}.{key}": value for name, module in _MODULES.items() for key, value in vars(module).items()
             if callable(value)}  # fmt: skip
    return named | {f"{name}.{key}": getattr(sys.modules[name], key) for name, keys in _OTHERS.items() for key in keys}


def _set_attribute(name: str, value: Any) -> None:
    module, _, key = name.rpartition(".")
    setattr(_MODULES.get(module) or sys.modules[module], key, value)


def _umask() -> str:
    """Return the process's umask; read where Linux shows it, since setting it to learn it lets other threads see it."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("Umask:"):
                    return f"{int(line.split()[1], 8):03o}"
    except OSError:
        pass  # no /proc here
    mask = os.umask(0o077)
    os.umask(mask)
    return f"{mask:03o}"


def _directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "(removed)"


def _threads_of_torch() -> dict[str, int]:
    torch = sys.modules.get("torch")
    return {} if torch is None else {"of torch": torch.get_num_threads()}


_TABLE = (
    _Group("another {}", _attributes, _set_attribute, operator.is_),
    _one("umask", _umask, lambda mask: os.umask(int(mask, 8))),
    _one("the current directory", _directory, os.chdir),
    _one("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    _one("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _one("the switch interval", sys.getswitchinterval, sys.setswitchinterval),
    _one("the garbage collector's use", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    _one("the root logger's level", lambda: logging.root.level, logging.root.setLevel),
    _one("logging disabled up to level", lambda: logging.root.manager.disable, logging.disable),
    _one("the precision of decimals", lambda: decimal.DefaultContext.prec,
         lambda digits: setattr(decimal.DefaultContext, "prec", digits)),
    _one("the time-out of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
    _Group("another number of threads {}", _threads_of_torch, lambda _, n: sys.modules["torch"].set_num_threads(n)),
    _Group("another handler of {}", lambda: {one.name: signal.getsignal(one) for one in _SIGNALS},
           lambda name, handler: signal.signal(signal.Signals[name], handler)),
    _Group("another limit {}", lambda: {name: resource.getrlimit(number) for name, number in _LIMITS.items()},
           lambda name, pair: resource.setrlimit(_LIMITS[name], pair)),
    _Group("another value, or none, of the variables {}", lambda: dict(os.environ), os.environ.__setitem__),
    _Group("sys.path without {}", lambda: dict.fromkeys(sys.path), lambda path, _: sys.path.append(path)),
    _Group("sys.modules without {}", lambda: {name: sys.modules.get(name) for name in _MODULES},
           sys.modules.__setitem__),
    _Group("warnings without the filters {}", lambda: dict.fromkeys(warnings.filters),
           lambda one, _: warnings.filters.append(one)),  # type: ignore[attr-defined]
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
    changed = [name for name, value in before.items() if name not in now or not group.same(now[name], value)]
    if not changed:
        return
    names = ", ".join(map(str, changed[:_SHOWN])) + (f" and {len(changed) - _SHOWN} more" if changed[_SHOWN:] else "")
    detail = group.detail.format(names) if "{}" in group.detail else f"{group.detail} {now['']} instead of {before['']}"
    try:
        for name in changed:
            group.write(name, before[name])
    except (OSError, ValueError) as error:
        detail += f" (which cannot be undone: {error})"
    yield detail
