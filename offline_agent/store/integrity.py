"""Seals of folders: a file that lists sizes and hashes of the others, so that damage is found before use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SEAL = "whole.json"
_HASH = "xxh3_128"  # against damage, not forgery (a forger could rewrite the seal too); it hashes gigabytes a second
_BLOCK = 1 << 20


def seal(folder: Path) -> Path:
    """Write the seal of a folder (size in bytes and hash of every file) and return its path. Raises OSError."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SEAL)
    listed = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, _HASH: hash_file(path)} for path in files
    }
    (folder / SEAL).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    return folder / SEAL


def faults(folder: Path, contents: bool = True) -> list[str] | None:
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
    found = ((name, _fault(folder / name, entry, contents)) for name, entry in listed.items())
    return [f"{name}: {fault}" for name, fault in found if fault]


def _fault(path: Path, entry: Any, contents: bool) -> str | None:
    wanted = {"bytes": entry, _HASH: None} if isinstance(entry, int) else entry  # earlier versions wrote sizes alone
    try:
        size = path.stat().st_size
        if size != wanted["bytes"]:
            return f"it has {size} bytes, {wanted['bytes']} were written"
        if contents and wanted[_HASH] is not None and wanted[_HASH] != hash_file(path):
            return "its contents are not those that were written"
    except FileNotFoundError:
        return "missing"
    except (OSError, ValueError) as error:
        return f"not readable ({error})"
    except (KeyError, TypeError):
        return f"its entry in {SEAL} is broken"
    return None


def hash_file(path: Path) -> str:
    """Return the hash of a file's bytes. Raises OSError."""
    import xxhash

    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return str(digest.hexdigest())
