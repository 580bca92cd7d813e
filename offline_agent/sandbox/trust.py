"""The sandbox of this process, as the settings ask for, and whether a policy's code may run in it."""

from __future__ import annotations

import os
import threading

from offline_agent.errors import ConfigError
from offline_agent.sandbox.process import SandboxError
from offline_agent.sandbox.sandbox import INSTALL, Sandbox
from offline_agent.sandbox.settings import STRENGTH, Settings, settings

_shared: dict[Settings, Sandbox] = {}
_owner = os.getpid()
_guard = threading.Lock()


def shared() -> Sandbox:
    """Return this process's sandbox, as the settings ask for."""
    global _owner
    chosen = settings()
    with _guard:
        if _owner != os.getpid():  # a fork: locks may be held by threads that are not here
            _shared.clear()
            _owner = os.getpid()
        if chosen not in _shared:
            _shared[chosen] = Sandbox(command=chosen.command)
        return _shared[chosen]


def refusal(sandbox: Sandbox, allow: str) -> str | None:
    """Return why an untrusted policy's code may not run in a sandbox; None where it may."""
    level = sandbox.level
    if STRENGTH[level] >= STRENGTH[allow]:
        return None
    told = "; ".join(f"{name}: {why}" for name, why in sandbox.refusals.items())
    return (
        f"sandbox.allow: this machine's sandbox is {level!r}, allowed for a policy that is not trusted: {allow!r} or "
        f"stronger ({told}); {INSTALL}, or accept what it does not contain (docs/sandbox.md) with sandbox.allow={level}"
    )


def check_trust(trusted: bool) -> None:
    """Raise ConfigError where a policy's code may not run in this machine's sandbox."""
    if trusted:
        return
    try:
        fault = refusal(shared(), settings().allow)
    except SandboxError as error:
        raise ConfigError(f"sandbox: {error}") from error
    if fault:
        raise ConfigError(fault)
