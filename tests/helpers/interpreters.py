"""Interpreters of their own for environments: bare ones, and ones with some distributions of this one's."""

from __future__ import annotations

import re
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement


def interpreter(folder: Path, *names: str) -> str:
    """Return the path of an interpreter that has the named distributions and what they need, and nothing else.

    They are links to this interpreter's, so no package index is asked.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    site = site_packages(folder)
    for one in _closure(names).values():
        for top in {Path(str(file)).parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(one.locate_file(top))))
    return str(folder / "bin" / "python")


def site_packages(folder: Path) -> Path:
    """Return the folder in which an interpreter's distributions lie."""
    return next((folder / "lib").glob("python*")) / "site-packages"


def _closure(names: tuple[str, ...]) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    waiting = [(name, frozenset[str]()) for name in names]
    while waiting:
        name, extras = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found:
            continue
        try:
            found[key] = distribution(name)
        except PackageNotFoundError:  # for another system
            continue
        for line in found[key].requires or ():
            need = Requirement(line)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras | {""}):
                waiting.append((need.name, frozenset(need.extras)))
    return found
