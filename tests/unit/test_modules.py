"""Every module can be imported, and what it imports from other projects is installed with the core.

A name that only type checkers see is missed nowhere else before a command runs, and a package that only the tests'
environment holds is missed by no other test.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import offline_agent

ROOT = Path(offline_agent.__file__).parent
# imported where the user asked for them, else refused with their extra
EXTRAS = {"PIL", "datasets", "gguf", "ray", "tinker", "vllm"}
EXTRAS |= {"inspect_ai", "mcp", "openenv", "verifiers"}  # envs/serving, which these projects load themselves
MODULES = [m.name for m in pkgutil.walk_packages(offline_agent.__path__, "offline_agent.")]


def test_every_module_can_be_imported() -> None:
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:  # an engine that is not installed
            if str(error.name).startswith("offline_agent"):
                pytest.fail(f"{name}: {error}")


def _installed_with(name: str, found: set[str]) -> set[str]:
    """Add the distributions that come with one, without extras."""
    try:
        needed = [Requirement(line) for line in requires(name) or ()]
    except PackageNotFoundError:
        return found
    for one in needed:
        key = canonicalize_name(one.name)
        if key not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(key)
            _installed_with(key, found)
    return found


def test_what_the_core_imports_is_installed_with_it() -> None:
    core, owners = _installed_with("offline-agent", set()), packages_distributions()
    missing = {}
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            named = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            named += [str(node.module)] if isinstance(node, ast.ImportFrom) and not node.level else []
            for top in {name.split(".")[0] for name in named} - set(sys.stdlib_module_names) - EXTRAS:
                known = {canonicalize_name(owner) for owner in owners.get(top, ())}
                if top != "offline_agent" and not known & core:
                    missing[top] = str(file.relative_to(ROOT))
    assert not missing, "declare them in pyproject.toml's dependencies"
