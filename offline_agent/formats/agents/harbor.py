"""Harbor's `result.json` of a trial, with the ATIF trajectory that its agent wrote beside it.

The verifier's rewards are the outcome. A trial that ended in an exception has none, since nobody knows whether the
agent or the machine failed; but for an agent's timeout, whose rewards count, as time is a part of the task.

Definitions: harbor 0.25, src/harbor/models/trial/result.py and models/verifier/result.py (read at
UniPat-AI/harbor_multiturn bd2c50b).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError
from offline_agent.formats import atif
from offline_agent.formats.agents.reader import Reader, looking_at
from offline_agent.logs import files
from offline_agent.logs.episode import Fields, LoggedEpisode, at, inner

_RESULT, _TRAJECTORY = "result.json", Path("agent/trajectory.json")
_OWN_LIMIT = "AgentTimeoutError"


def once(paths: Sequence[Path]) -> list[Path]:
    """Return the files that are read: in the folder of a trial its result alone, which brings its trajectory along."""
    trials = {path.parent for path in paths if path.name == _RESULT and (path.parent / "agent").is_dir()}
    return [path for path in paths
            if not trials.intersection(path.parents) or (path.parent in trials and path.name == _RESULT)]  # fmt: skip


def _recognised(record: Mapping[str, Any]) -> str | None:
    return "trial_name and task_name" if {"trial_name", "task_name"} <= record.keys() else None


def _read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    path = Path(name).parent / _TRAJECTORY
    if not path.is_file():
        raise DataError(f"there is no {path}: its agent wrote no ATIF trajectory")
    found = next(files.records(path), files.Record(str(path), None))
    if found.damage is not None or not isinstance(found.value, Mapping) or atif.recognised(found.value) is None:
        raise DataError(f"{path}: {found.damage or 'no ATIF trajectory'}")
    rewards, failed = inner(record, "verifier_result.rewards"), at(record, "exception_info.exception_type")
    told = {**found.value, **record, "verifier_result": {"rewards": rewards}}
    if failed not in (None, _OWN_LIMIT):
        told = {**found.value, **record, "verifier_result": None}
    outcome = "verifier_result.rewards" + (f".{next(iter(rewards))}" if len(rewards) == 1 else "")
    places = looking_at(fields, told, outcome=outcome, task="task_name", session="id")
    for episode in atif.read(told, name, places):
        unread = None if failed is None or episode.score is not None else f"exception_info: got {failed!r:.60}"
        yield replace(episode, unread=unread)


READERS = (Reader("harbor", _recognised, _read),)
