"""What finished mining leaves behind, so that it is not done again while its trees and tables are as they were."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError
from offline_agent.records import SCHEMA_VERSION
from offline_agent.store.columns import PAIR_TABLES
from offline_agent.store.files import disk_errors, read_json, write_json
from offline_agent.store.run_directory import RunDirectory

FILE = "mined.json"
_MADE = (*PAIR_TABLES, "trajectories", "filtered", "quarantine.jsonl")


def known(run: RunDirectory) -> Mapping[str, Any] | None:
    """Return the figures that were kept; None where there are none, or where code, trees or tables differ since."""
    path = run.path / FILE
    if not path.exists():
        return None
    try:
        kept = read_json(path, "")
        sound = kept["schema_version"] == SCHEMA_VERSION and kept["of"] == _state(run)
        return dict(kept["figures"]) if sound else None
    except (DataError, KeyError, TypeError, ValueError):
        return None  # it only saves work


def keep(run: RunDirectory, figures: Mapping[str, Any]) -> None:
    """Keep the figures of mining that is done, with what they hold for. Raises DataError where the disk refused."""
    run.quarantined.close()  # what follows notes its time of change
    write_json(run.path / FILE, {"schema_version": SCHEMA_VERSION, "of": _state(run), "figures": figures})


def _state(run: RunDirectory) -> dict[str, Any]:
    """Return what mining depends on and what it wrote: the code, and names, sizes and times of change of the files."""
    resumed = run.manifest.get("resumed")
    code = resumed[-1]["code"] if resumed else run.manifest["hashes"]["code"]
    return {"code": code, "trees": _digest(run.path / "trees"), **{name: _digest(run.path / name) for name in _MADE}}


def _digest(path: Path) -> str:
    """Return a hash of the names, sizes and times of change of a file, or of those in a folder; "" for none."""
    if not path.exists():
        return ""
    with disk_errors(path, "looking at it"):
        files = [("", path.stat())] if path.is_file() else _files(path)
    total = hashlib.blake2b(digest_size=16)
    for name, stat in sorted(files, key=lambda file: file[0]):
        total.update(f"{name}/{stat.st_size}/{stat.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _files(folder: Path) -> list[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        return [(entry.name, entry.stat()) for entry in entries]
