"""Shards: slices of a run's tasks in run directories of their own, each with one writer, and their merge.

A tree, or an attempt, depends on seed and task alone, so a shard is the same command on a slice of the tasks, and the
merge copies results. The merge can be repeated; it fails unless every shard is complete.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.errors import DataError
from offline_agent.runner.pipeline import Session, Shard, Spread
from offline_agent.store.files import read_json, write_json
from offline_agent.store.manifest import MANIFEST, read_manifest
from offline_agent.store.provenance import changed_sources

FOLDER = "shards"
SLURM_FOLDER = "slurm"
"""Folder in the run directory: scripts, configurations, logs and the record of submissions."""

_SECRET = re.compile(r"\$\{oc\.env:(\w+)\}")
_SAME = ("model", "tokenizer", "chat_template", "against_model")
_LISTED = 12


def cut(run_dir: Path, tasks: int, wanted: int) -> list[Shard]:
    """Return the shards of a run; the first submission decides them.

    Args:
        run_dir: The run directory, an absolute path.
        tasks: Number of tasks of the run.
        wanted: Number of shards to make, at most one for each task.

    Raises:
        DataError: The file of the first submission is broken, or has another number of tasks.
    """
    if not (run_dir / FOLDER / "cut.json").exists():
        count = min(wanted, tasks)
        bounds = [tasks * number // count for number in range(count + 1)]
        write_json(run_dir / FOLDER / "cut.json", {"schema_version": 1, "bounds": bounds})
    shards = shards_of(run_dir)
    if shards[-1].stop != tasks:
        raise DataError(
            f"{run_dir / FOLDER}: its shards have {shards[-1].stop} tasks, the run has {tasks}. Name another run_dir"
        )
    return shards


def shards_of(run_dir: Path) -> list[Shard]:
    """Return the shards of a run, empty if it has none; raises DataError if their file is broken."""
    file = run_dir / FOLDER / "cut.json"
    if not file.exists():
        return []
    try:
        bounds = [int(bound) for bound in read_json(file, "")["bounds"]]
        assert len(bounds) > 1 and bounds == sorted(set(bounds))
    except (DataError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise DataError(f"{file}: broken. Restore it from a copy, or name another run_dir") from error
    return [Shard(n, run_dir / FOLDER / f"{n:04}", bounds[n], bounds[n + 1]) for n in range(len(bounds) - 1)]


def share_of(budget: Any, total: int, tasks: int) -> Any:
    """Return a search's budget for so many of all tasks: each has the same."""
    limits = {name: getattr(budget, name) for name in ("tokens", "prefilled", "tool_calls")}
    shares = {name: limit // total * tasks for name, limit in limits.items() if limit is not None}
    return budget.model_copy(update=shares)


def shard_config(config: Any, shard: Shard, total: int) -> Any:
    """Return the configuration of a shard: a slice of the tasks, with the same budget for each task.

    Args:
        config: Configuration of the run.
        shard: The shard.
        total: Number of tasks of the run.
    """
    assert isinstance(config, BuildPrefsConfig | EvaluateConfig)
    update: dict[str, Any] = {
        "run_dir": str(shard.path),
        "launcher": "local",
        "tracking": config.tracking.model_copy(update={"uri": None}),  # the merge tracks
        "tasks": config.tasks.model_copy(update={"offset": config.tasks.offset + shard.start, "n": shard.tasks}),
        "search": config.search.model_copy(update={"budget": share_of(config.search.budget, total, shard.tasks)}),
    }
    return config.model_copy(update=update)


# -- state ---------------------------------------------------------------------------------------


def manifest_of(path: Path) -> dict[str, Any] | None:
    """Return the manifest of a run directory; None if there is none. Raises as `read_manifest`."""
    return read_manifest(path) if (path / MANIFEST).exists() else None


def is_whole(path: Path) -> bool:
    """Return whether the run of a directory is done."""
    return (manifest_of(path) or {}).get("status") == "done"


def finished(path: Path, command: str) -> int:
    """Return the number of trees of `build_prefs`, or of attempts of `evaluate`, in a run directory."""
    if command == "build_prefs":
        try:
            with os.scandir(path / "trees") as entries:
                return sum(entry.name.endswith(".json.gz") for entry in entries)
        except OSError:
            return 0
    with contextlib.suppress(OSError), open(path / "events" / "0000.jsonl", "rb") as log:
        return sum(b'"attempt":' in line[:40] for line in log)
    return 0


# -- merge ---------------------------------------------------------------------------------------------------


def merge(spread: Spread[Any, Any], prepared: Any, session: Session[Any]) -> dict[str, Any]:
    """Copy the results of all shards into the run directory; return how many there are.

    Raises:
        DataError: There are no shards, or a shard is not complete or has another model.
    """
    run_dir = session.run.path.resolve()
    shards, command = shards_of(run_dir), session.run.manifest["command"]
    if not shards:
        raise DataError(f"--merge: {run_dir} has no shards; give the command with launcher=slurm or ray first")
    missing = [shard.number for shard in shards if not is_whole(shard.path)]
    if missing:
        raise DataError(
            f"--merge: {len(missing)} of {len(shards)} shards are not done: {listed(missing)}; nothing was merged.\n"
            f"  their state:  python -m offline_agent.pipelines.status {shlex.quote(f'run_dir={session.run.path}')}\n"
            f"  to go on:     {resume_command(run_dir, command)}"
        )
    for shard in shards:
        _check(shard, session)
    session.progress.start(spread.tasks(prepared), "gathering")
    spread.gather(prepared, session, shards)
    for shard in shards:
        _quarantined(shard, session)
    return {"count": len(shards)}


def listed(numbers: Sequence[int]) -> str:
    """Return numbers for a message; after a dozen, how many more there are."""
    more = len(numbers) - _LISTED
    return ", ".join(map(str, numbers[:_LISTED])) + (f" and {more} more" if more > 0 else "")


def _check(shard: Shard, session: Session[Any]) -> None:
    manifest = manifest_of(shard.path) or {}
    theirs, ours = manifest.get("hashes", {}), session.run.manifest["hashes"]
    for change in changed_sources(session.run.manifest.get("sources", {}), manifest.get("sources", {})):
        raise DataError(
            f"--merge: {change} before shard {shard.number} began. Put the earlier source back, remove {shard.path}, "
            "and give the command again with its launcher"
        )
    for name in _SAME:
        if theirs.get(name) != ours.get(name):
            raise DataError(
                f"--merge: shard {shard.number} was made with another {name.replace('_', ' ')} (hash "
                f"{theirs.get(name)}, the run has {ours.get(name)}). Remove {shard.path} and give the command "
                "again with its launcher"
            )
    if theirs.get("code") != ours.get("code"):
        session.say(f"shard {shard.number} was made by another version of the code; both hashes are in the manifests")


def _quarantined(shard: Shard, session: Session[Any]) -> None:
    from offline_agent.store.run_directory import Quarantine

    for row in Quarantine(shard.path / "quarantine.jsonl").read():
        plain = {name: value for name, value in row.items() if name not in ("schema_version", "kind", "name", "reason")}
        session.run.quarantine(row["kind"], row["name"], row["reason"], **plain)


def resume_command(run_dir: Path, command: str) -> str:
    """Return a command that resumes a run: it submits what is neither done nor under way.

    Args:
        run_dir: The run directory.
        command: The command of the run.
    """
    names = {"merge.yaml": [], "job.yaml": ["launcher=slurm"]}
    for name, more in names.items():
        file = run_dir / SLURM_FOLDER / name
        if file.is_file():
            needed = sorted(set(_SECRET.findall(file.read_text(encoding="utf-8"))))
            set_before = "".join(f"{variable}=... " for variable in needed)
            plain = ["python", "-m", f"offline_agent.pipelines.{command}", "--config", str(file), *more]
            return set_before + shlex.join(plain)
    return f"python -m offline_agent.pipelines.{command} {shlex.quote(f'run_dir={run_dir}')}"
