"""Trackers: parameters, metrics and artifacts of a run, sent to MLflow by a child process.

The run sends JSON lines and never waits, so tracking can neither slow it down nor stop it. The child process,
`offline_agent.store.mlflow_worker`, is the only place where MLflow is imported: that takes five processor seconds and
200 MB. Where tracking fails, the run reports it once and continues; what was not sent is in its event logs and summary.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from offline_agent.outgoing import masked, visible
from offline_agent.store.provenance import python_path

_QUIETLY, _AT_MOST = 30.0, 300.0  # seconds of waiting before it is announced; seconds of waiting in all
_NOT_ALL = "not everything was sent"
_KEPT = "its records are in the run directory (events/, summary.json)"

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "GIT_PYTHON_REFRESH": "quiet",
}
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
            self._send("artifact", path=str(path.resolve()), folder=folder)

    def close(self, status: Status = "FINISHED") -> None:
        """End the run; it waits until all messages are sent, at most five minutes (a killed run: 10 s).

        Raises what a signal raises inside the wait.
        """
        if self._link is not None:
            self._send("end", status=status, at=_now())
            self._link.close(_KILLED_WAITS if status == "KILLED" else _AT_MOST)


def open_tracker(uri: str | None, experiment: str, run: TrackedRun, say: Callable[[str], None]) -> Tracker:
    """Start tracking a run, or continue the one with the same `run_id`.

    Args:
        uri: MLflow's tracking URI; None = no tracking.
        experiment: MLflow's experiment; created where it is missing.
        run: What is told of the run.
        say: Called from any thread with a sentence for the user: at most once where tracking does not work, and once
            where `close` waits longer than a few seconds.
    """
    if uri is None:
        return Tracker()
    link = WorkerPipe(uri, experiment, say)
    link.send({
        "op": "start", "name": run.name, "key": run.run_id, "params": dict(flatten(run.params)),
        "tags": dict(flatten(run.tags)), "parent": run.parent, "at": _now(),
    })  # fmt: skip
    return Tracker(link, run.run_id)


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


class WorkerPipe:
    """The run's end of the pipe to the child process."""

    def __init__(self, uri: str, experiment: str, say: Callable[[str], None]) -> None:
        self._say = say
        self._said = threading.Lock()
        self._open = {"op": "open", "uri": uri, "experiment": experiment}
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "offline_agent.store.mlflow_worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
                env={**_QUIET, **os.environ, "PYTHONPATH": python_path()}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._fail(f"the tracking process did not start: {error}")
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._listen)]
        for thread in self._threads:
            thread.start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message for sending; secrets in it are masked."""
        self._queue.put(json.dumps(masked(message)) + "\n")

    def close(self, at_most: float) -> None:
        """Wait until all messages are handled; a dead server ends the child's requests, and so the wait, by itself.

        Args:
            at_most: Seconds after which the wait ends in any case.

        Raises:
            BaseException: Whatever a signal raises inside the wait; the pipe is closed then too.
        """
        self._queue.put(None)
        try:
            if self._process is not None:
                self._wait(self._process, at_most)
        except BaseException:
            self._fail("the wait for MLflow was interrupted", _NOT_ALL)
            raise
        finally:
            self._end()

    def _wait(self, process: subprocess.Popen[str], at_most: float) -> None:
        quietly = min(_QUIETLY, at_most)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(quietly)
            return
        self._say(f"tracking.uri: waiting for MLflow, at most {at_most:g} s; Ctrl-C leaves it, {_KEPT}")
        try:
            process.wait(at_most - quietly)
        except subprocess.TimeoutExpired:
            self._fail(f"MLflow was still busy {at_most:g} s after the end", _NOT_ALL)

    def _end(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        for thread in self._threads:
            thread.join(timeout=5)
        if process is not None and process.stdout:
            process.stdout.close()
        if process is not None and process.returncode:
            self._fail(f"the tracking process ended with status {process.returncode}")

    def _write(self) -> None:
        pipe: IO[str] | None = self._process.stdin if self._process else None
        line: str | None = json.dumps(self._open) + "\n"
        while line is not None:
            try:
                if pipe is not None:
                    pipe.write(line)
                    pipe.flush()
            except OSError as error:
                self._fail(f"the tracking process is gone: {error}")
                pipe = None
            line = self._queue.get()
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _listen(self) -> None:
        pipe = self._process.stdout if self._process else None
        for line in pipe or ():
            self._fail(line.strip())

    def _fail(self, why: str, what: str = "tracking does not work") -> None:
        if self._said.acquire(blocking=False):  # never released, so the message appears once
            self._say(f"tracking.uri: {what} ({why}); the job goes on, {_KEPT}")
