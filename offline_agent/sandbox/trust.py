"""Trust: settings of the sandbox, the sandbox of this process, and whether a policy's code may run in it.

The settings are read from the configuration once, and handed to the processes that this one starts.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.sandbox.process import SandboxError
from offline_agent.sandbox.sandbox import INSTALL, Sandbox

_VARIABLE, _LEVEL = "OFFLINE_AGENT_SANDBOX", "OFFLINE_AGENT_SANDBOX_LEVEL"
_ALLOWED = "namespaces"

STRENGTH = {"limits": 0, "namespaces": 1, "bubblewrap": 2, "command": 2}
"""Levels by what they contain; docs/sandbox.md."""

_fall: dict[str, Any] = {}
_shared: dict[tuple[str, ...], Sandbox] = {}
_report: Callable[[str], None] | None = None
_owner = os.getpid()
_guard = threading.Lock()


def configure(allow: str = _ALLOWED, command: Sequence[str] | None = None) -> None:
    """Set the settings of this process and of those that it starts.

    Args:
        allow: The weakest level at which an untrusted policy's code may run.
        command: Command that starts a container, before the interpreter's own arguments; None = none.
    """
    os.environ[_VARIABLE] = json.dumps({"allow": allow, "command": list(command or ())})


def _given() -> tuple[str, tuple[str, ...]]:
    """Return what `configure` was given."""
    given = json.loads(os.environ.get(_VARIABLE) or "{}")
    return given.get("allow", _ALLOWED), tuple(given.get("command", ()))


def shared() -> Sandbox:
    """Return this process's sandbox, as the settings ask for."""
    global _owner
    command = _given()[1]
    with _guard:
        if _owner != os.getpid():  # a fork: locks may be held by threads that are not here
            _shared.clear()
            _owner = os.getpid()
        if command not in _shared:
            level, _, found_by = os.environ.get(_LEVEL, "").partition(" ")
            started = found_by != str(os.getpid())  # no weaker level than that of the process that started this one
            _shared[command] = Sandbox(level if level and started else None, command, _found)
        return _shared[command]


def _found(sandbox: Sandbox) -> None:
    os.environ[_LEVEL] = f"{sandbox.level} {os.getpid()}"  # for those that this process starts
    if sandbox.refusals:
        _fall.update(level=sandbox.level, refused=dict(sandbox.refusals))
        if _report is not None:
            report_fall(_report)


def report_fall(report: Callable[[str], None]) -> None:
    """Say that this process's sandbox is not of the strongest level, or have it said once that is found out."""
    global _report
    _report = report
    if _fall:
        level, why = _fall["level"], _why(_fall["refused"])
        report(f"programs run in a sandbox of level {level}, since stronger ones do not work: {why}")


def fall() -> dict[str, Any]:
    """Return for the manifest the sandbox's `level` and why stronger ones were `refused`; {} where none was."""
    return {"sandbox": dict(_fall)} if _fall else {}


def _why(refused: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in refused.items())


def check_trust(trusted: bool) -> None:
    """Raise ConfigError where a policy's code may not run in this machine's sandbox."""
    if trusted:
        return
    sandbox, allow = shared(), _given()[0]
    try:
        level = sandbox.level
    except SandboxError as error:
        raise ConfigError(f"sandbox: {error}") from error
    if STRENGTH[level] < STRENGTH[allow]:
        raise ConfigError(
            f"sandbox.allow: this machine's sandbox is {level!r}, allowed for a policy that is not trusted: {allow!r} "
            f"or stronger ({_why(sandbox.refusals)}); {INSTALL}, or accept what it does not contain (docs/sandbox.md) "
            f"with sandbox.allow={level}"
        )
