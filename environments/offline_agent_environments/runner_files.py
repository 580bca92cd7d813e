"""Files that test runners and Python read by their name: what a policy writes there is no part of its work."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import PurePosixPath

from offline_agent.sandbox.launch import site_packages

_CONFIGURES = frozenset(
    ("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "sitecustomize.py", "usercustomize.py")
)
_METADATA = (".pth", ".dist-info", ".egg-info", ".egg-link")  # they may name code to load at each start
_PRODUCTS = frozenset(("test", "tests"))  # names of modules that no runner imports


def configures(path: str) -> bool:
    """Return whether a file, or a folder above it, says how test runners or Python start."""
    return any(part in _CONFIGURES or part.lower().endswith(_METADATA) for part in PurePosixPath(path).parts)


def shadows(paths: Iterable[str], folder: str = "", links: Collection[str] = ()) -> set[str]:
    """Return the files and folders that Python would import in place of its own modules, or of installed ones.

    Args:
        paths: Relative paths of files and links.
        folder: The folder to import from, a relative path; "" = the folder of the paths.
        links: Those of the paths that are links; they may lead to code.
    """
    start = f"{folder}/" if folder else ""
    found = set()
    for path in paths:
        top, _, inner = path.removeprefix(start).partition("/")
        module = top.partition(".")[0]
        if not path.startswith(start) or module not in _taken():
            continue
        if inner:  # org: pickle and copy look for org.python.core, which is Jython's
            code = inner.startswith("__init__.") or (module == "org" and inner.startswith("python"))
        else:
            code = top.endswith((".py", ".pyc", ".so")) or path in links
        if code:
            found.add(start + top)
    return found


@cache
def _taken() -> frozenset[str]:
    installed = (name for folder in site_packages() for name in os.listdir(folder))
    return (sys.stdlib_module_names | {name.partition(".")[0] for name in installed} | {"org"}) - _PRODUCTS
