"""Trackers: parameters, metrics and artifacts of a run, sent to MLflow by a child process.

The run sends JSON lines and never waits, so tracking can neither slow it down nor stop it. The child process,
`offline_agent.store.tracking.worker`, is the only place where MLflow is imported: that takes five processor seconds and
200 MB. Where tracking fails, the run reports it
once and continues; messages are stored in the run directory until they have arrived, and are sent by the next session
or by `python -m offline_agent.pipelines.track`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from offline_agent.outgoing import visible
from offline_agent.store.tracking.pipe import AT_MOST, NAME, UnsentMessages, WorkerPipe

_KILLED_WAITS = 10.0  # seconds; a signal asks for a quick end
Status = Literal["FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What MLflow is told of a run at its start.

    Attributes:
        name: Its name.
        run_id: The run's own id (`RunDirectory.manifest["run_id"]`), stored as a tag.
        params: The resolved configuration; nested keys are joined by dots.
        tags: Tags.
        parent: `run_id` of the run that this one is part of, in the same store; None = none.
    """

    name: str
    run_id: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    parent: str | None = None


class Tracker:
    """Destination of a run's metrics, tags and artifacts. No method but `close` waits or raises.

    Args:
        link: The pipe to the process that talks to MLflow; None = everything is discarded.
        key: The run's id.
    """

    def __init__(self, link: WorkerPipe | None = None, key: str = "") -> None:
        self._link, self._key = link, key

    def _send(self, op: str, **facts: Any) -> None:
        if self._link is not None:
            self._link.send({"op": op, "key": self._key, **facts})

    def metrics(self, values: Mapping[str, float | int | None], step: int = 0) -> None:
        """Send metrics; None (not computed) is left out."""
        known = {name: float(value) for name, value in values.items() if value is not None}
        self._send("metrics", values=known, step=step, at=_now())

    def tags(self, values: Mapping[str, str]) -> None:
        """Send tags."""
        self._send("tags", tags=dict(flatten(values)))

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Send a file; it is read when it is sent, so call this when the file is complete."""
        if self._link is not None:
            self._send("artifact", path=self._link.place(path), folder=folder)

    def register(self, name: str, model: Path, alias: str, tags: Mapping[str, str]) -> None:
        """Make a folder the next version of a model of the registry, and give it the alias; nothing is copied."""
        if self._link is not None:
            self._send("register", name=name, path=self._link.place(model), alias=alias, tags=dict(flatten(tags)))

    def close(self, status: Status = "FINISHED") -> None:
        """End the run; it waits until all messages are sent, while MLflow works, at most 600 s.

        A killed run waits 10 s at most. Raises what a signal raises inside the wait.
        """
        if self._link is not None:
            self._send("end", status=status, at=_now())
            self._link.close(_KILLED_WAITS if status == "KILLED" else AT_MOST)


def open_tracker(
    uri: str | None,
    experiment: str,
    run: TrackedRun,
    say: Callable[[str], None],
    run_dir: Path | None = None,
    timeout: float = 60.0,
) -> Tracker:
    """Start tracking a run, or continue the one with the same `run_id`.

    Args:
        uri: MLflow's tracking URI; None = no tracking.
        experiment: MLflow's experiment; created where it is missing.
        run: What is told of the run.
        say: Called from any thread with a sentence for the user: at most once where tracking does not work, and once
            where `close` waits longer than a few seconds.
        run_dir: Folder of the file of unsent messages, earlier sessions' included; None = messages are not stored.
        timeout: Seconds that `close` waits without a sign of life of the child process.
    """
    if uri is None:
        return Tracker()
    link = WorkerPipe(uri, experiment, say, timeout, run_dir)
    link.send({
        "op": "start", "name": run.name, "key": run.run_id, "params": dict(flatten(run.params)),
        "tags": dict(flatten(run.tags)), "parent": run.parent, "at": _now(),
    })  # fmt: skip
    return Tracker(link, run.run_id)


def send(run_dir: Path, uri: str, experiment: str, say: Callable[[str], None], timeout: float = 600.0) -> int | None:
    """Send the unsent messages of a run; return their number, None where sending failed again.

    Args:
        run_dir: The run directory; no process works in it.
        uri, experiment, say, timeout: See `open_tracker`.
    """
    waiting = len(UnsentMessages(run_dir / NAME).waiting())
    if not waiting:
        return 0
    link = WorkerPipe(uri, experiment, say, timeout, run_dir)
    link.close(math.inf)  # a large backlog may take long; silence still ends it
    return None if link.failed else waiting


def _now() -> int:
    """Return the time in milliseconds, MLflow's unit."""
    return int(time.time() * 1000)


def flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) of nested keys, the form of MLflow's parameters."""
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", visible(value) if isinstance(value, str) else json.dumps(value)


def numbers(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a summary as metrics; nested names are joined by slashes."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", value
