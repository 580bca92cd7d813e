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


def keep_level(level: str) -> None:
    """Keep the level that this process found: those that it starts use no weaker one."""
    os.environ[_LEVEL] = f"{level} {os.getpid()}"


def kept_level() -> str | None:
    """Return the level that the process found that started this one; None where there is none."""
    level, _, found_by = os.environ.get(_LEVEL, "").partition(" ")
    return level if level and found_by != str(os.getpid()) else None


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
            _shared[command] = Sandbox(kept_level(), command, _found)
        return _shared[command]


def _found(sandbox: Sandbox) -> None:
    keep_level(sandbox.level)
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


def refusal(sandbox: Sandbox, allow: str) -> str | None:
    """Return why an untrusted policy's code may not run in a sandbox; None where it may."""
    level = sandbox.level
    if STRENGTH[level] >= STRENGTH[allow]:
        return None
    return (
        f"sandbox.allow: this machine's sandbox is {level!r}, allowed for a policy that is not trusted: {allow!r} or "
        f"stronger ({_why(sandbox.refusals)}); {INSTALL}, or accept what it does not contain (docs/sandbox.md) "
        f"with sandbox.allow={level}"
    )


def check_trust(trusted: bool) -> None:
    """Raise ConfigError where a policy's code may not run in this machine's sandbox."""
    if trusted:
        return
    try:
        fault = refusal(shared(), _given()[0])
    except SandboxError as error:
        raise ConfigError(f"sandbox: {error}") from error
    if fault:
        raise ConfigError(fault)
