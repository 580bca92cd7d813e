"""The keys of the sandbox: where code runs that a policy wrote."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from offline_agent.sections import Section, key


class SandboxSection(Section):
    """The sandbox."""

    allow: Literal["bubblewrap", "namespaces", "limits"] = key(
        "namespaces", "weakest level at which code of a model runs; a run that would have a weaker one is refused "
        "(docs/sandbox.md says what each contains); the strongest that works here is used in any case", free=True,
    )  # fmt: skip
    command: tuple[str, ...] | None = key(
        None, "a command that starts a container and runs in it what follows, in place of the sandbox's own, e.g. "
        "[docker, run, -i, --rm, --network=none, python:3.11-slim]; each call starts one", strict=False,
    )  # fmt: skip

    @field_validator("command")
    @classmethod
    def _not_empty(cls, command: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if command is not None and not all(command):
            raise ValueError(f"sandbox.command: got {list(command)!r}, allowed: a list of texts, none empty, or null")
        return command or None
