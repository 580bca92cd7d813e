"""Hashes of code and files, facts about the machine, and seals of folders, by which damage is found before use."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
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
_UNKNOWN = 4 << 40  # bytes, where neither the system nor a group sets a limit
_GROUP_FILES = (  # limit and use of the control group's memory, version 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


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

    The source is the module's file, or the files of its whole package, without installed packages and this one. Other
    modules that it imports are not seen. A short name of an installed package has the version of its distribution as
    well, by the distribution's name.

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
        both = then[name].keys() & now[name].keys()  # earlier versions listed more files
        files = sorted(file for file in both if then[name][file] != now[name][file])
        if files:
            yield f"the source of {name} changed ({', '.join(files)})"


def _source(text: str) -> dict[str, str]:
    """Return the hashes of the files that a text names, by file: a module or all of its package, or Python files.

    Of the folder of a reward model its figures alone, which differ for another training.
    """
    if (found := _NAMED.fullmatch(text)) is not None:
        name = found[1].partition(".")[0]
        root = _root_of(name)
        files = [] if root is None else [root / f"{name}.py", *(root / name).rglob("*.py")]
    else:
        words = re.split(r"[\s:]", text)  # of `my_env.py:Env`, or a command such as `mcp:python server.py`
        files = [Path(word).resolve() for word in words if word.endswith(".py")] or [Path(text, "reward_model.json")]
        root = files[0].parent if files else None
    there = sorted(file for file in files if os.path.isfile(file))  # False for a text that is no path
    return {Path(os.path.relpath(file, root)).as_posix(): _digest(file).hex() for file in there}


def _root_of(name: str) -> Path | None:
    """Return the folder that holds a top-level module; None for the standard library, this package, installed ones."""
    if name in sys.stdlib_module_names or name == _PACKAGE.name:
        return None
    spec = PathFinder.find_spec(name, [os.getcwd(), *sys.path])
    try:
        spec = spec or importlib.util.find_spec(name)
    except ValueError:  # a module without a spec, such as __main__
        return None
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin]
    if not places or places[0] is None:
        return None
    folder = Path(places[0]).parent
    return None if _INSTALLED & set(folder.parts) else folder


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


def free_memory() -> int:
    """Return the bytes that this process may still take; 4 TiB where they are not known."""
    free = [_UNKNOWN]
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free.append(int(line.split()[1]) * 1024)
    for most, used in _GROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            free.append(max(0, int(Path(most).read_text()) - int(Path(used).read_text())))
    return min(free)


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
