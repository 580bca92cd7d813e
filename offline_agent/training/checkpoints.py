"""Checkpoints that are there whole or not at all, and the newest whole one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from offline_agent._store.files import sync_folder
from offline_agent.errors import TrainingError

_NAME = re.compile(r"checkpoint-(\d+)")
_WHOLE = "whole.json"
_STAGING = ".writing"


def staging(folder: Path) -> Path:
    """Return where a checkpoint is written before it gets its name."""
    return folder / _STAGING


def whole(folder: Path) -> list[Path]:
    """Return the whole checkpoints under `folder`, oldest first; torn ones are passed over."""
    found = [entry for entry in folder.glob("checkpoint-*") if _whole(entry)] if folder.is_dir() else []
    return sorted(found, key=number)


def newest(folder: Path) -> Path | None:
    """Return the newest whole checkpoint under `folder`, None where there is none."""
    return max(whole(folder), key=number, default=None)


def number(checkpoint: Path) -> int:
    """Return after how many updates a checkpoint was written."""
    match = _NAME.fullmatch(checkpoint.name)
    return int(match[1]) if match else -1


def commit(folder: Path, name: str, keep: int) -> Path:
    """Make what lies in `staging(folder)/name` the checkpoint `name`, and remove all but the newest `keep`.

    Raises:
        OSError: The disk refused; the checkpoints that were there are untouched.
    """
    written, final = staging(folder) / name, folder / name
    files = sorted(path for path in written.rglob("*") if path.is_file())
    sizes = {path.relative_to(written).as_posix(): path.stat().st_size for path in files}
    (written / _WHOLE).write_text(json.dumps(sizes), encoding="utf-8")
    for path in [*files, written / _WHOLE]:
        _sync(path)
    sync_folder(written)
    if final.exists():  # torn, or it would have been gone on from
        shutil.rmtree(final)
    os.replace(written, final)
    sync_folder(folder)
    whole = sorted((entry for entry in folder.glob("checkpoint-*") if _whole(entry)), key=number)
    for old in whole[: -max(1, keep)]:
        # out of sight first: a kill in between leaves no half-removed checkpoint under its name
        with contextlib.suppress(OSError):
            os.replace(old, staging(folder) / f"old-{old.name}")
    shutil.rmtree(staging(folder), ignore_errors=True)
    return final


@contextlib.contextmanager
def saving(folder: Path, what: str) -> Iterator[None]:
    """Turn whatever writing raises inside the block into a TrainingError; nothing half-written is left.

    torch raises RuntimeError where the disk is full, safetensors an error of its own.
    """
    shutil.rmtree(staging(folder), ignore_errors=True)
    try:
        yield
    except Exception as error:
        shutil.rmtree(staging(folder), ignore_errors=True)
        left = newest(folder)
        kept = f"The last good checkpoint is {left}" if left else "There is no checkpoint yet"
        raise TrainingError(
            f"{folder}: {what} could not be written ({' '.join(str(error).split())[:200]}). {kept}; free some space "
            "and give the same command again with this run_dir, it goes on from there."
        ) from error


def _whole(checkpoint: Path) -> bool:
    try:
        sizes = json.loads((checkpoint / _WHOLE).read_text(encoding="utf-8"))
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items()) and bool(sizes)
    except (OSError, ValueError, AttributeError):
        return False


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
