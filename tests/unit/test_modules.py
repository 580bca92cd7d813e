"""Every module can be imported: a name that only type checkers see is missed nowhere else before a command runs."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import offline_agent

MODULES = [m.name for m in pkgutil.walk_packages(offline_agent.__path__, "offline_agent.")]


def test_every_module_can_be_imported() -> None:
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:  # an engine that is not installed
            if str(error.name).startswith("offline_agent"):
                pytest.fail(f"{name}: {error}")
