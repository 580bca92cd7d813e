"""Sandboxes of a level that not every machine has."""

from __future__ import annotations

import pytest

from offline_agent.sandbox import Sandbox, SandboxError
from tests.helpers.engines import require


def sandbox_at(level: str) -> Sandbox:
    """Return a new sandbox of a level; skip the test, and say why, where this machine does not have it."""
    sandbox = Sandbox(level)
    try:
        assert sandbox.level == level
    except SandboxError as error:
        if level == "bubblewrap":  # `.ci/run` installs it
            require(level, False, f"apt-get install bubblewrap ({error})")
        pytest.skip(f"this machine's kernel or container does not allow {level}: {error}")
    return sandbox
