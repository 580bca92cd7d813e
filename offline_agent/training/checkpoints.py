"""Checkpoints that are there whole or not at all, each with the hashes of its files, and the newest sound one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offline_agent.errors import OfflineAgentError, TrainingError
from offline_agent.store import integrity
from offline_agent.store.files import sync_folder

_NAME = re.compile(r"checkpoint-(\d+)")
_STAGING = ".writing"
_RECORDS = "trainer_state.json"


def staging(folder: Path) -> Path:
    """Return where a checkpoint is written before it gets its name."""
    return folder / _STAGING


def newest(folder: Path, most: int | None = None) -> Path | None:
    """Return the newest sound checkpoint under `folder`, None where there is none.

    Args:
        folder: The folder of the checkpoints.
        most: Updates that it may have at most; None = any number.
    """
    known = [entry for entry in _listed(folder) if most is None or number(entry) <= most]
    return next((entry for entry in known if not damage(entry)), None)


def resume(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the checkpoint to go on from, None for the beginning, and a note on each newer one that is damaged.

    Raises:
        TrainingError: There are checkpoints, but every one is damaged.
    """
    notes: list[str] = []
    for entry in _listed(folder):
        found = damage(entry)
        if not found:
            return entry, [f"{note}; going on from {entry.name}" for note in notes]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        notes.append(f"{entry} is damaged ({found[0]}{more})")
    if notes:
        raise TrainingError(
            f"{'; '.join(notes)}, and there is no sound checkpoint before it. Restore it from a copy, or remove "
            f"{folder} and give the same command again with this run_dir: training begins anew."
        )
    return None, []


def damage(checkpoint: Path, contents: bool = True) -> list[str]:
    """Return how the files of a checkpoint differ from what was written; see `integrity.faults`."""
    found = integrity.faults(checkpoint, contents)
    return [f"{integrity.SEAL}: missing"] if found is None else found


def _listed(folder: Path) -> list[Path]:
    """Return everything under `folder` that is called a checkpoint, newest first."""
    found = [entry for entry in folder.glob("checkpoint-*") if number(entry) >= 0] if folder.is_dir() else []
    return sorted(found, key=number, reverse=True)


def number(checkpoint: Path) -> int:
    """Return after how many updates a checkpoint was written."""
    match = _NAME.fullmatch(checkpoint.name)
    return int(match[1]) if match else -1


def records(checkpoint: Path) -> list[dict[str, Any]]:
    """Return the record of every update behind a checkpoint; raises TrainingError as `loading`."""
    with loading(checkpoint):
        found = json.loads((checkpoint / _RECORDS).read_text(encoding="utf-8"))
        made: list[dict[str, Any]] = found["records"]
        if not found["global_step"] == len(made) == number(checkpoint):
            raise ValueError(f"{_RECORDS} is of update {found['global_step']} and has {len(made)} records")
        return made


def write_records(checkpoint: Path, made: list[dict[str, Any]]) -> None:
    """Write what `records` reads."""
    text = json.dumps({"global_step": len(made), "records": made}, indent=1)
    (checkpoint / _RECORDS).write_text(text, encoding="utf-8")


def commit(folder: Path, name: str, keep: int) -> Path:
    """Make what lies in `staging(folder)/name` the checkpoint `name`, and remove all but the newest `keep`.

    Raises:
        OSError: The disk refused; the checkpoints that were there are untouched.
    """
    written, final = staging(folder) / name, folder / name
    integrity.seal(written)
    for path in sorted(path for path in written.rglob("*") if path.is_file()):
        _sync(path)
    sync_folder(written)
    if final.exists():  # damaged, or it would have been gone on from
        shutil.rmtree(final)
    os.replace(written, final)
    sync_folder(folder)
    kept = [entry for entry in _listed(folder) if not damage(entry, contents=False)][: max(1, keep)]
    for old in (entry for entry in _listed(folder) if number(entry) < number(kept[-1])):
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


@contextlib.contextmanager
def loading(checkpoint: str | Path) -> Iterator[None]:
    """Turn whatever reading a checkpoint raises inside the block into a TrainingError that says what to do.

    Its hashes were right, so another version wrote it, or an early one that kept no hashes.
    """
    try:
        yield
    except (OfflineAgentError, MemoryError):
        raise
    except Exception as error:  # torch, safetensors, pickle and json raise classes of their own
        said = " ".join(str(error).split())[:200]
        if type(error).__name__ == "OutOfMemoryError":
            raise
        raise TrainingError(
            f"{checkpoint}: it cannot be loaded ({type(error).__name__}: {said}). Where other versions of torch or "
            "transformers wrote it, use those. Else remove it and give the same command again with this run_dir: "
            "training goes on from the checkpoint before it, or begins anew where there is none."
        ) from error


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
