"""Checkpoints that are there whole or not at all, each with its files' hashes; checks of updates and weights.

Training stops before a bad update damages the model, and names the newest sound checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.errors import OfflineAgentError, TrainingError
from offline_agent.store import provenance
from offline_agent.store.files import sync_folder

if TYPE_CHECKING:
    from offline_agent.training.data.updates import Update

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
    """Return how the files of a checkpoint differ from what was written; see `provenance.seal_faults`."""
    found = provenance.seal_faults(checkpoint, contents)
    return [f"{provenance.SEAL}: missing"] if found is None else found


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
    provenance.seal(written)
    sync(written)
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
        raise TrainingError(
            f"{folder}: {what} could not be written ({' '.join(str(error).split())[:200]}); {_kept(folder)}; free some "
            "space and give the same command again with this run_dir, it goes on from there."
        ) from error


@contextlib.contextmanager
def loading(checkpoint: str | Path) -> Iterator[None]:
    """Turn whatever reading a checkpoint raises inside the block into a TrainingError that says what to do.

    Its hashes were right, so another version wrote it.
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


def sync(folder: Path) -> None:
    """Make a folder and all files in it durable; raises OSError where the disk refused."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def _kept(folder: Path) -> str:
    left = newest(folder)
    return f"the last good checkpoint is {left}" if left else "there is no checkpoint yet"


_NAMED = 8  # most rows or weights that a message names
_AFTER, _DROP, _ACCURACY = 20, 0.5, 0.9  # of `stalled`: updates, nats a token, accuracy on the pairs


@dataclass(frozen=True)
class Guard:
    """Refuses an update whose loss or gradient is no number or too large, and weights that are not finite.

    Args:
        max_loss, max_gradient: The largest allowed.
        folder: The folder of the checkpoints, for the message.
    """

    max_loss: float
    max_gradient: float
    folder: Path

    def loss(self, value: float, update: Update) -> None:
        """Raise TrainingError if the loss of an update is bad."""
        self._check("loss", value, self.max_loss, "guard.max_loss", update)

    def gradient(self, value: float, update: Update) -> None:
        """Raise TrainingError if the gradient norm of an update, before clipping, is bad."""
        self._check("gradient norm", value, self.max_gradient, "guard.max_gradient", update)

    def weights(self, broken: Sequence[str], updates: int) -> None:
        """Raise TrainingError if weights are not finite.

        Args:
            broken: Names of those that are not finite.
            updates: Number of updates behind the weights.
        """
        if not broken:
            return
        left, again = newest(self.folder), ""
        if left is not None and (left / "config.json").exists():  # not adapters alone
            again = f", from the last good weights with model.path={left}"
        raise TrainingError(
            f"update {updates}: it made weights that are not finite: {_names(broken)}. They were not saved; "
            f"{_kept(self.folder)}. Lower optimizer.learning_rate or optimizer.clip; begin in another run_dir{again}."
        )

    def _check(self, what: str, value: float, limit: float, key: str, update: Update) -> None:
        if math.isfinite(value) and value <= limit:
            return
        raise TrainingError(
            f"update {update.number + 1}: its {what} is {value:.6g}, allowed: a number up to {limit:g} ({key}). "
            f"The model was not changed by it; {_kept(self.folder)}. Its rows: {_names([u.name for u in update.rows])}"
            + (f"; replayed: {_names([u.name for u in update.anchors])}" if update.anchors else "")
            + ". Look at them, or lower optimizer.learning_rate."
        )


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def stalled(records: Iterable[dict[str, Any]]) -> str | None:
    """Return a warning where pairs are classified well while the chosen sides become unlikely; else None."""
    entries = list(records)
    if len(entries) < _AFTER:
        return None
    tenth = max(1, len(entries) // 10)
    fell = _mean(entries[:tenth], "sft") - _mean(entries[-tenth:], "sft")
    known = [entry for entry in entries[-tenth:] if "accuracy" in entry]
    accuracy = _mean(known, "accuracy") if known else 0.0
    if accuracy < _ACCURACY or -fell < _DROP:
        return None
    return (
        f"accuracy on the pairs is {accuracy:.2f}, but a chosen token's log-probability fell by {-fell:.2f} on "
        "average: the policy forgets what it could do; raise dpo.sft or anchor.weight, or lower optimizer.learning_rate"
    )


def _mean(entries: Sequence[dict[str, Any]], name: str) -> float:
    return sum(float(entry[name]) for entry in entries) / len(entries)
