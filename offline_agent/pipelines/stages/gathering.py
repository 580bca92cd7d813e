"""What shards made, gathered: the trees of searches, the attempts of evaluations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.errors import DataError
from offline_agent.launch.shards import Shard, listed
from offline_agent.rollouts.attempts import Key
from offline_agent.runner.components import Parts
from offline_agent.runner.pipeline import Session


def gather_trees(parts: Parts, session: Session[BuildPrefsConfig], shards: Sequence[Shard]) -> None:
    """Put the trees of all shards into the run directory; see `runner.pipeline.Spread.gather`.

    Raises:
        DataError: A shard lacks a tree, or the disk refused; no table is written then.
    """
    from offline_agent.store.files import disk_errors, safe_name, sync_folder

    trees, done = session.run.path / "trees", 0
    with disk_errors(trees, "gathering trees"):
        trees.mkdir(exist_ok=True)
        there = set(os.listdir(trees))
        for shard in shards:
            names = [f"{safe_name(task.task_id)}.json.gz" for task in parts.tasks[shard.start : shard.stop]]
            theirs = set(os.listdir(shard.path / "trees"))
            if missing := [n for n, name in enumerate(names, shard.start) if name not in theirs]:
                raise DataError(
                    f"{shard.path / 'trees'}: the trees of tasks number {listed(missing)} are missing, though the "
                    f"shard is done. Remove {shard.path} and give the command with launcher=slurm again"
                )
            for name in names:
                if name not in there:
                    _place(shard.path / "trees" / name, trees / name)
            done += len(names)
            session.progress.update(done)
        sync_folder(trees)


def _place(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where that is not possible; nothing changes trees in place."""
    from offline_agent.store.files import write_atomic

    try:
        os.link(source, target)
    except OSError:
        write_atomic(target, source.read_bytes())


def gather_attempts(session: Session[EvaluateConfig], shards: Sequence[Shard], wanted: Iterable[Key]) -> None:
    """Put the attempts of all shards into the run's event log; see `runner.pipeline.Spread.gather`.

    Args:
        session: The run.
        shards: Its shards.
        wanted: The key of every attempt there must be.

    Raises:
        DataError: An attempt is missing, a log is broken, or the disk refused.
    """
    from offline_agent.store.events import EventLog

    log = session.run.events()
    there = {_name(record) for record in log.read()}
    for shard in shards:
        for record in EventLog(shard.path / "events" / "0000.jsonl").read():
            if _name(record) not in there:
                log.append(record)
                there.add(_name(record))
        session.progress.update(shard.stop)
    missing = [key for key in wanted if key not in there]
    if missing:
        raise DataError(
            f"{len(missing)} attempts are in no shard, e.g. {'/'.join(map(str, missing[0]))}, though all are done. "
            f"Remove {shards[0].path.parent} and give the command with launcher=slurm again"
        )


def _name(record: Mapping[str, Any]) -> Any:
    """Return what a record of the attempts' log is of: an attempt's key, or an opening's name."""
    return tuple(record["attempt"]) if "attempt" in record else record["name"]
