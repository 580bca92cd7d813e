"""Tracking with MLflow by a child process, so that it can neither slow a job down nor stop it.

The job's side sends JSON lines and never waits; `offline_agent.tracking.worker` is the other side, and the only place
where MLflow is imported. When tracking fails, the job says so once and goes on; what it sent is kept in the run
directory until it has arrived, and is sent with the next session or by `python -m offline_agent.pipelines.track`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from offline_agent.tracking.outbox import NAME, Outbox

Status = Literal["FINISHED", "FAILED", "KILLED"]

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "GIT_PYTHON_REFRESH": "quiet",
}


class Tracker(Protocol):
    """Where a run's parameters, metrics, tags and artifacts are sent. No method waits or raises, but `close` waits."""

    def metrics(self, values: Mapping[str, float | int | None], step: int = 0) -> None:
        """Send metrics; None (not computed) is left out."""
        ...

    def tags(self, values: Mapping[str, str]) -> None:
        """Send tags."""
        ...

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Send a file, read when it is sent: call it when the file is whole."""
        ...

    def child(self, name: str, params: Mapping[str, Any] | None = None) -> Tracker:
        """Begin a run under this one."""
        ...

    def close(self, status: Status = "FINISHED") -> None:
        """End the run; the outermost one waits until everything is sent, or for the time-out."""
        ...


class NullTracker:
    """Tracks nothing."""

    def metrics(self, values: Mapping[str, float | int | None], step: int = 0) -> None:
        """Do nothing."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Do nothing."""

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Do nothing."""

    def child(self, name: str, params: Mapping[str, Any] | None = None) -> Tracker:
        """Return itself."""
        return self

    def close(self, status: Status = "FINISHED") -> None:
        """Do nothing."""


def open_tracker(
    uri: str | None,
    experiment: str,
    name: str,
    *,
    run_id: str,
    params: Mapping[str, Any],
    tags: Mapping[str, str],
    say: Callable[[str], None],
    parent: str | None = None,
    timeout: float = 60.0,
    run_dir: Path | None = None,
) -> Tracker:
    """Begin tracking a run, or go on with the one that has the same `run_id`.

    Args:
        uri: MLflow's tracking URI; None = no tracking.
        experiment: MLflow's experiment; made where it is missing.
        name: The run's name.
        run_id: The run's own id (`RunDirectory.manifest["run_id"]`), kept as a tag.
        params: The resolved configuration; nested keys are joined by dots.
        tags: Tags.
        say: Called at most once, from any thread, with a sentence for the user when tracking does not work.
        parent: `run_id` of the run this one is part of, in the same store; None = none.
        timeout: Seconds that `close` waits at most.
        run_dir: Where messages are kept until they have arrived, those of earlier sessions too; None = nowhere.
    """
    if uri is None:
        return NullTracker()
    start = {
        "op": "start", "name": name, "key": run_id, "params": dict(flatten(params)), "tags": dict(tags),
        "parent": parent, "at": _now(),
    }  # fmt: skip
    return _Run(_Link(uri, experiment, say, timeout, run_dir), run_id, start, outermost=True)


def send(run_dir: Path, uri: str, experiment: str, say: Callable[[str], None], timeout: float = 600.0) -> int | None:
    """Send what a run's sessions could not; return how many messages that were, None where it failed again.

    Args:
        run_dir: The run directory; nobody works in it.
        uri, experiment, say, timeout: See `open_tracker`.
    """
    waiting = len(Outbox(run_dir / NAME).waiting())
    if not waiting:
        return 0
    link = _Link(uri, experiment, say, timeout, run_dir)
    link.close()
    return None if link.failed else waiting


def _now() -> int:
    """Return the time in milliseconds, as MLflow has it."""
    return int(time.time() * 1000)


def flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) of nested keys, as MLflow takes parameters."""
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


class _Run:
    def __init__(self, link: _Link, key: str, start: Mapping[str, Any], outermost: bool) -> None:
        self._link, self._key, self._outermost = link, key, outermost
        link.send(start)

    def metrics(self, values: Mapping[str, float | int | None], step: int = 0) -> None:
        known = {name: float(value) for name, value in values.items() if value is not None}
        self._link.send(
            {"op": "metrics", "key": self._key, "values": known, "step": step, "at": _now()}
        )

    def tags(self, values: Mapping[str, str]) -> None:
        self._link.send({"op": "tags", "key": self._key, "tags": dict(values)})

    def artifact(self, path: Path, folder: str | None = None) -> None:
        self._link.send({"op": "artifact", "key": self._key, "path": self._link.place(path), "folder": folder})

    def child(self, name: str, params: Mapping[str, Any] | None = None) -> Tracker:
        key = uuid.uuid4().hex
        start = {
            "op": "child", "parent": self._key, "key": key, "name": name,
            "params": dict(flatten(params or {})), "tags": {},
        }  # fmt: skip
        return _Run(self._link, key, start, outermost=False)

    def close(self, status: Status = "FINISHED") -> None:
        self._link.send({"op": "end", "key": self._key, "status": status, "at": _now()})
        if self._outermost:
            self._link.close()


class _Link:
    """The job's side of the pipe to the child process.

    Attributes:
        failed: Whether something was not sent.
    """

    def __init__(
        self, uri: str, experiment: str, say: Callable[[str], None], timeout: float, run_dir: Path | None
    ) -> None:
        self.failed = False
        self._say = say
        self._timeout = timeout
        self._said = threading.Lock()
        self._root = Path(run_dir or ".").resolve()
        self._outbox = None if run_dir is None else Outbox(self._root / NAME)
        self._open = {"op": "open", "uri": uri, "experiment": experiment, "root": str(self._root)}  # uri: never kept
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        package = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "offline_agent.tracking.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
                env={**_QUIET, **os.environ, "PYTHONPATH": paths}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._fail(f"the tracking process did not start: {error}")
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._listen)]
        for thread in self._threads:
            thread.start()

    def place(self, path: Path) -> str:
        """Return a file's path, below the run directory where it is there: that may be moved before it is sent."""
        whole = Path(path).resolve()
        return str(whole.relative_to(self._root) if whole.is_relative_to(self._root) else whole)

    def send(self, message: Mapping[str, Any]) -> None:
        """Hand a message over."""
        self._queue.put(json.dumps(message) + "\n")

    def close(self) -> None:
        """Wait until everything is carried out, or for the time-out; what is not stays in the outbox."""
        self._queue.put(None)
        process = self._process
        if process is not None:
            try:
                process.wait(self._timeout)
            except subprocess.TimeoutExpired:
                self._fail(f"no answer for {self._timeout:g} s")
                process.kill()
                process.wait()
        for thread in self._threads:
            thread.join(timeout=5)
        if process is not None and process.stdout:
            process.stdout.close()
        if process is not None and process.returncode:
            self._fail(f"the tracking process ended with status {process.returncode}")
        if self._outbox is not None and self.failed:
            self._outbox.close()
        elif self._outbox is not None:
            self._outbox.clear()

    def _write(self) -> None:
        """Keep each message, then pass it on; where the other side is gone, keep it alone."""
        pipe = self._process.stdin if self._process else None
        try:
            before = self._outbox.waiting() if self._outbox is not None else []
        except OSError as error:
            before = []
            self._fail(f"what is kept cannot be read: {error}")
        for line in (json.dumps(self._open) + "\n", *before):
            pipe = self._pass_on(line, pipe)
        while (line_or_end := self._queue.get()) is not None:
            try:
                if self._outbox is not None:
                    self._outbox.keep(line_or_end)
            except OSError as error:
                self._fail(f"messages cannot be kept: {error}")
            pipe = self._pass_on(line_or_end, pipe)
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()

    def _pass_on(self, line: str, pipe: IO[str] | None) -> IO[str] | None:
        if pipe is None:
            return None
        try:
            pipe.write(line)
            pipe.flush()
        except OSError as error:
            self._fail(f"the tracking process is gone: {error}")
            with contextlib.suppress(OSError):
                pipe.close()
            return None
        return pipe

    def _listen(self) -> None:
        pipe = self._process.stdout if self._process else None
        for line in pipe or ():
            self._fail(line.strip())

    def _fail(self, why: str) -> None:
        self.failed = True
        if not self._said.acquire(blocking=False):  # held for good: it is said once
            return
        kept = "its records are in the run directory"
        if self._outbox is not None:
            command = shlex.join(["python", "-m", "offline_agent.pipelines.track", f"run_dir={self._root}"])
            kept += f" and are sent when the run is gone on with, or by {command}"
        self._say(f"tracking.uri: tracking does not work ({why}); the job goes on, {kept}")
