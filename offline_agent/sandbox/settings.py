"""Settings of the sandbox: read from the configuration once, and handed to the processes that this one starts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

_VARIABLE, _LEVEL = "OFFLINE_AGENT_SANDBOX", "OFFLINE_AGENT_SANDBOX_LEVEL"

STRENGTH = {"limits": 0, "namespaces": 1, "bubblewrap": 2, "command": 2}
"""Levels by what they contain; docs/sandbox.md."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the sandbox.

    Attributes:
        allow: The weakest level at which an untrusted policy's code may run.
        command: Command that starts a container, before the interpreter's own arguments; () = none.
    """

    allow: str = "namespaces"
    command: tuple[str, ...] = ()


def configure(allow: str = "namespaces", command: Sequence[str] | None = None) -> None:
    """Set the settings of this process and of those that it starts."""
    os.environ[_VARIABLE] = json.dumps({"allow": allow, "command": list(command or ())})


def keep_level(level: str) -> None:
    """Keep the level that this process found: those that it starts use no weaker one."""
    os.environ[_LEVEL] = f"{level} {os.getpid()}"


def kept_level() -> str | None:
    """Return the level that the process found that started this one; None where there is none."""
    level, _, found_by = os.environ.get(_LEVEL, "").partition(" ")
    return level if level and found_by != str(os.getpid()) else None


def settings() -> Settings:
    """Return the settings of this process."""
    given = json.loads(os.environ.get(_VARIABLE) or "{}")
    return Settings(given.get("allow", "namespaces"), tuple(given.get("command", ())))
