"""Hashes of code and files, and facts about the machine, for manifests."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError
from offline_agent.store.files import disk_errors

_PACKAGE = Path(__file__).resolve().parent.parent
_SKIPPED = {".git", "__pycache__", ".cache", ".locks"}
_LIBRARIES = ("torch", "transformers", "tokenizers", "trl", "peft", "datasets", "numpy", "pyarrow", "networkx")


def hash_json(data: Any) -> str:
    """Return 32 hex digits that identify a JSON value, independent of the order of its keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def hash_path(path: str | Path, suffixes: tuple[str, ...] = ()) -> str:
    """Return 32 hex digits that identify a file's bytes, or a folder's names and bytes.

    Args:
        path: A file or folder; version-control and cache folders in it are ignored.
        suffixes: Only files with these suffixes count; empty = all.

    Raises:
        DataError: It is missing or cannot be read.
    """
    root = Path(path)
    if not root.exists():
        raise DataError(f"{root}: no such file or folder, so it cannot be hashed. Check the path.")
    total = hashlib.blake2b(digest_size=16)
    with disk_errors(root, "hashing it"):
        for name, file in _files(root):
            if suffixes and not name.endswith(suffixes):
                continue
            total.update(name.encode("utf-8", "surrogatepass") + b"\0")
            total.update(_digest(file))
    return total.hexdigest()


def _files(root: Path) -> list[tuple[str, Path]]:
    if root.is_file():
        return [("", root)]
    found: list[tuple[str, Path]] = []
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(set(folders) - _SKIPPED)
        found += [((Path(folder) / name).relative_to(root).as_posix(), Path(folder) / name) for name in names]
    return sorted(found)


def _digest(file: Path) -> bytes:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).digest()


def code_hash() -> str:
    """Return 32 hex digits that identify the package's Python files."""
    return hash_path(_PACKAGE, (".py",))


def git_commit(folder: str | Path | None = None) -> str | None:
    """Return the commit checked out in `folder`, with `-dirty` appended where tracked files differ; None if unknown.

    Args:
        folder: A checkout; None = the project's own, else the current directory.
    """
    if folder is None:
        folder = _PACKAGE.parent if (_PACKAGE.parent / "pyproject.toml").exists() else Path.cwd()
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def machine() -> dict[str, Any]:
    """Return host, platform, Python, number of cores, and the versions of the libraries that affect results."""
    versions: dict[str, str | None] = {}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "libraries": versions,
    }
