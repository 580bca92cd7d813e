"""Engines that not every machine has: where one is missing its tests are skipped, but never in `.ci/run`."""

from __future__ import annotations

import os

import pytest

STRICT = "OFFLINE_AGENT_REQUIRE_ENGINES"
"""Environment variable: set to 1, a missing engine is a failure."""


def require(name: str, available: bool, how_to_install: str) -> None:
    """Skip the tests of an engine that is not here; fail instead where `STRICT` is set.

    Args:
        name: The engine.
        available: Whether it is here.
        how_to_install: A command.
    """
    if available:
        return
    if os.environ.get(STRICT) == "1":
        pytest.fail(f"{name} is missing, and {STRICT}=1 says that it must not be: {how_to_install}", pytrace=False)
    pytest.skip(f"{name} is not installed here: {how_to_install}", allow_module_level=True)
