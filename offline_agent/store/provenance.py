"""Hashes of code and files, facts about the machine, and seals of folders, by which damage is found before use."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from offline_agent import catalog
from offline_agent.errors import DataError
from offline_agent.store.files import disk_errors, open_bytes
from offline_agent.store.files import hash_json as hash_json

_PACKAGE = Path(__file__).resolve().parent.parent
_SKIPPED = {".git", "__pycache__", ".cache", ".locks"}
_NAMED = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w.]*")
_INSTALLED = {"site-packages", "dist-packages"}
_LIBRARIES = ("torch", "transformers", "tokenizers", "trl", "peft", "datasets", "numpy", "pyarrow", "networkx")


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
    for name, file in _files(root):
        if suffixes and not name.endswith(suffixes):
            continue
        total.update(name.encode("utf-8", "surrogatepass") + b"\0")
        with disk_errors(file, "hashing it"):
            total.update(_digest(file))
    return total.hexdigest()


def _files(root: Path) -> list[tuple[str, Path]]:
    if not root.is_dir():
        return [("", root)]
    found: list[tuple[str, Path]] = []
    with disk_errors(root, "listing it"):
        for folder, folders, names in os.walk(root, followlinks=True, onerror=_raised):
            folders[:] = sorted(set(folders) - _SKIPPED)
            found += [((Path(folder) / name).relative_to(root).as_posix(), Path(folder) / name) for name in names]
    return sorted(found)


def _raised(error: OSError) -> None:
    """Raise what `os.walk` would pass over: a folder that cannot be read would drop out of the hash."""
    raise error


def _digest(file: Path) -> bytes:
    with open_bytes(file) as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).digest()


def python_path(*more: str | None) -> str:
    """Return PYTHONPATH for a child process: with this package, and with what this process was given."""
    return os.pathsep.join(filter(None, [str(_PACKAGE.parent), os.environ.get("PYTHONPATH"), *more]))


def code_hash() -> str:
    """Return 32 hex digits that identify the package's Python files."""
    return hash_path(_PACKAGE, (".py",))


def sources(config: Any, kind: str = "") -> dict[str, dict[str, str]]:
    """Return the hashes of the source of each `module:name` and Python file in a configuration, by file.

    The source is the module's file and those of the modules that it imports, however deep, without installed packages
    and this one. Modules that are imported by a computed name are not seen. A short name of an installed package has
    the version of its distribution as well, by the distribution's name.

    Args:
        config: A resolved configuration, or a part of it.
        kind: `env` or `judge`: the section of which it is a part, whose short names are looked up; "" = none.
    """
    if isinstance(config, dict):
        found = [sources(part, key if key in catalog.GROUPS else kind) for key, part in config.items()]
        return {name: files for one in found for name, files in one.items()}
    if isinstance(config, list):
        return {name: files for part in config for name, files in sources(part, kind).items()}
    point = catalog.entry_point(kind, config) if kind and isinstance(config, str) else None
    files = _source(config) if isinstance(config, str) and point is None else {}
    if point is not None:
        value = point.value if ":" in point.value else f"{point.value}:adapt"
        files = {**dict([catalog.distribution(point).split(" ", 1)]), **_source(value)}
    return {config: files} if files else {}


def changed_sources(then: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each name in both results of `sources` whose files differ."""
    for name in sorted(then.keys() & now.keys()):
        files = sorted(file for file in then[name] | now[name] if then[name].get(file) != now[name].get(file))
        if files:
            yield f"the source of {name} changed ({', '.join(files)})"


def _source(text: str) -> dict[str, str]:
    found = _NAMED.fullmatch(text)
    if found is not None:
        names = found[1].split(".")
        root = _root_of(names[0], Path.cwd())
        left = [] if root is None else list(_along(root, names))
    else:
        words = re.split(r"[\s:]", text)  # of `my_env.py:Env`, or a command such as `mcp:python server.py`
        left = [Path(word).resolve() for word in words if word.endswith(".py") and Path(word).is_file()]
        root = left[0].parent if left else None
    files: dict[str, str] = {}
    while left and root is not None:
        file = left.pop()
        name = Path(os.path.relpath(file, root)).as_posix()
        if name not in files:
            content = file.read_bytes()
            files[name] = hashlib.blake2b(content, digest_size=16).hexdigest()
            left += _imported(content, file, root)
    return files


def _imported(content: bytes, file: Path, root: Path) -> Iterator[Path]:
    """Yield the files of the modules that a module imports."""
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            level, names = 0, [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            level, names = node.level, [".".join(filter(None, (node.module, alias.name))) for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            folder = file.parents[level - 1] if level else _root_of(parts[0], root)
            if folder is not None:
                yield from _along(folder, parts)


def _root_of(name: str, root: Path) -> Path | None:
    """Return the folder that holds a top-level module; None for the standard library, this package, installed ones."""
    if name in sys.stdlib_module_names or name == _PACKAGE.name:
        return None
    spec = PathFinder.find_spec(name, [str(root), os.getcwd(), *sys.path])
    try:
        spec = spec or importlib.util.find_spec(name)
    except ValueError:  # a module without a spec, such as __main__
        return None
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin]
    if not places or places[0] is None:
        return None
    folder = Path(places[0]).parent
    return None if _INSTALLED & set(folder.parts) else folder


def _along(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield the files of a module and of the packages that it is in; names after the module are attributes."""
    for name in names:
        if (folder / name / "__init__.py").is_file():
            yield folder / name / "__init__.py"
        elif (folder / f"{name}.py").is_file():
            yield folder / f"{name}.py"
            return
        folder = folder / name


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


SEAL = "whole.json"
_XXH = "xxh3_128"  # against damage, not forgery (a forger could rewrite the seal too); it hashes gigabytes a second
_BLOCK = 1 << 20


def seal(folder: Path) -> Path:
    """Write the seal of a folder (size in bytes and hash of every file) and return its path. Raises OSError."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SEAL)
    listed = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, _XXH: hash_file(path)} for path in files
    }
    (folder / SEAL).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    return folder / SEAL


def seal_faults(folder: Path, contents: bool = True) -> list[str] | None:
    """Return the differences between a folder and its seal; files that are not in the seal are ignored.

    Args:
        folder: The folder.
        contents: Whether to hash the files; else only sizes are compared.

    Returns:
        One text for each changed file, [] where there is none, None where there is no seal.
    """
    try:
        listed = json.loads((folder / SEAL).read_bytes())
        if not isinstance(listed, dict) or not listed:
            return [f"{SEAL}: it lists no files"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        return [f"{SEAL}: not readable ({error})"]
    found = ((name, _entry_fault(folder / name, entry, contents)) for name, entry in listed.items())
    return [f"{name}: {fault}" for name, fault in found if fault]


def _entry_fault(path: Path, entry: Any, contents: bool) -> str | None:
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            return f"it has {size} bytes, {entry['bytes']} were written"
        if contents and entry[_XXH] != hash_file(path):
            return "its contents are not those that were written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"missing or not readable ({error})"
    return None


def hash_file(path: Path) -> str:
    """Return the hash of a file's bytes. Raises OSError."""
    import xxhash

    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return str(digest.hexdigest())
