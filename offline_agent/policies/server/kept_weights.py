"""Copies of the newest checkpoint, for servers that were out during an update or were restarted after it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from offline_agent.errors import DataError
from offline_agent.policies.server.weights import new_name
from offline_agent.policies.weights import Probe
from offline_agent.store.integrity import hash_file


@dataclass(frozen=True, eq=False)
class KeptCheckpoint:
    """The weights that every server must have.

    Attributes:
        version: Name of the weights.
        folder: The copy of the checkpoint.
        probe: Expected log-probabilities.
        timeout: Seconds that a server may take to read the checkpoint.
        hashes: Hash of each file of the copy, by its name, when it was made.
    """

    version: str
    folder: Path
    probe: Probe | None
    timeout: float
    hashes: dict[str, str]


def keep(folder: Path, probe: Probe | None, timeout: float, but: KeptCheckpoint | None) -> KeptCheckpoint:
    """Copy a checkpoint to a folder beside it, by hard links where the file system has them.

    Args:
        folder: The checkpoint; it may be deleted afterwards, but its files must not be overwritten in place.
        probe, timeout: See `KeptCheckpoint`.
        but: The copy that is still in use; other copies of this folder, left by killed runs, are deleted.

    Raises:
        DataError: It cannot be copied there.
    """
    version = new_name(folder)
    prefix = f"{folder.name}-kept-"
    for left in folder.parent.glob(escape(prefix) + "*"):
        if but is None or left != but.folder:
            shutil.rmtree(left, ignore_errors=True)
    copy = folder.with_name(prefix + version.rsplit("-", 1)[-1])
    try:
        shutil.copytree(folder, copy, copy_function=_link)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(copy, ignore_errors=True)
        raise DataError(
            f"weights: {str(folder)!r} cannot be copied to {copy.name} beside it ({error}); restarted servers need the "
            "copy: give a folder whose parent is writable"
        ) from error
    return KeptCheckpoint(version, copy, probe, timeout, _hashes(copy))


def unchanged(update: KeptCheckpoint) -> None:
    """Check that a copy is unchanged. Raises DataError."""
    if _hashes(update.folder) != update.hashes:
        raise DataError(
            f"weights: {str(update.folder)!r} is gone, or its files were written over in place; call take_weights again"
        )


def forget(update: KeptCheckpoint) -> None:
    """Delete a copy."""
    shutil.rmtree(update.folder, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)


def _hashes(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): hash_file(file) for file in folder.rglob("*") if file.is_file()}
