"""MLflow, kept at arm's length: a child process talks to it, so that it can neither slow a job down nor stop it.

The job's side sends JSON lines and never waits; this module run as a program (`python -m offline_agent.tracking`) is
the other side, and the only place where MLflow is imported. When tracking fails, the job says so once and goes on.
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
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

Status = Literal["FINISHED", "FAILED", "KILLED"]

_PARAMS_AT_ONCE, _METRICS_AT_ONCE, _TAGS_AT_ONCE = 100, 1000, 100
_LONGEST_VALUE, _LONGEST_KEY = 6000, 250
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
    """
    if uri is None:
        return NullTracker()
    start = {
        "op": "start", "uri": uri, "experiment": experiment, "name": name, "key": run_id,
        "params": dict(flatten(params)), "tags": dict(tags), "parent": parent,
    }  # fmt: skip
    return _Run(_Link(say, timeout), run_id, start, outermost=True)


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
            {"op": "metrics", "key": self._key, "values": known, "step": step, "at": int(time.time() * 1000)}
        )

    def tags(self, values: Mapping[str, str]) -> None:
        self._link.send({"op": "tags", "key": self._key, "tags": dict(values)})

    def artifact(self, path: Path, folder: str | None = None) -> None:
        self._link.send({"op": "artifact", "key": self._key, "path": str(Path(path).resolve()), "folder": folder})

    def child(self, name: str, params: Mapping[str, Any] | None = None) -> Tracker:
        key = uuid.uuid4().hex
        start = {
            "op": "child", "parent": self._key, "key": key, "name": name,
            "params": dict(flatten(params or {})), "tags": {},
        }  # fmt: skip
        return _Run(self._link, key, start, outermost=False)

    def close(self, status: Status = "FINISHED") -> None:
        self._link.send({"op": "end", "key": self._key, "status": status})
        if self._outermost:
            self._link.close()


class _Link:
    """The job's side of the pipe to the child process."""

    def __init__(self, say: Callable[[str], None], timeout: float) -> None:
        self._say = say
        self._timeout = timeout
        self._said = threading.Lock()
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        package = str(Path(__file__).resolve().parent.parent)
        paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "offline_agent.tracking"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
                env={**_QUIET, **os.environ, "PYTHONPATH": paths}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._fail(f"the tracking process did not start: {error}")
            return
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._listen)]
        for thread in self._threads:
            thread.start()

    def send(self, message: Mapping[str, Any]) -> None:
        self._queue.put(json.dumps(message) + "\n")

    def close(self) -> None:
        process = self._process
        if process is None:
            return
        self._queue.put(None)
        try:
            process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            self._fail(f"no answer for {self._timeout:g} s")
            process.kill()
            process.wait()
        for thread in self._threads:
            thread.join(timeout=5)
        if process.stdout:
            process.stdout.close()
        if process.returncode:
            self._fail(f"the tracking process ended with status {process.returncode}")

    def _write(self) -> None:
        pipe = self._process.stdin if self._process else None
        if pipe is None:
            return
        try:
            while (line := self._queue.get()) is not None:
                pipe.write(line)
                pipe.flush()
        except OSError as error:
            self._fail(f"the tracking process is gone: {error}")
        with contextlib.suppress(OSError):
            pipe.close()

    def _listen(self) -> None:
        pipe = self._process.stdout if self._process else None
        for line in pipe or ():
            self._fail(line.strip())

    def _fail(self, why: str) -> None:
        if self._said.acquire(blocking=False):  # held for good: it is said once
            self._say(
                f"tracking.uri: tracking does not work ({why}); the job goes on, its records are in the run directory"
            )


class _Worker:
    """The child process's side: carries out messages with MLflow."""

    def __init__(self) -> None:
        self._runs: dict[str, str] = {}
        self._experiment = ""
        self._client: Any = None

    def handle(self, message: dict[str, Any]) -> None:
        getattr(self, "_" + message.pop("op"))(**message)

    def interrupt(self) -> None:
        """The job went away without a word."""
        for key in list(self._runs):
            self._end(key, "KILLED")

    def _start(
        self,
        uri: str,
        experiment: str,
        name: str,
        key: str,
        params: dict[str, str],
        tags: dict[str, str],
        parent: str | None = None,
    ) -> None:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        place = _sqlite_folder(uri)
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(experiment)
        if found is None:
            where = {} if place is None else {"artifact_location": (place / "mlruns").as_uri()}
            try:
                self._experiment = self._client.create_experiment(experiment, **where)
            except MlflowException:  # another job made it in between
                self._experiment = self._client.get_experiment_by_name(experiment).experiment_id
        else:
            self._experiment = found.experiment_id
        if parent is not None:
            above = self._known(parent)
            tags |= {"mlflow.parentRunId": above[0].info.run_id} if above else {}
        before = self._known(key)
        if before:
            run = before[0]
            self._client.update_run(run.info.run_id, status="RUNNING")
            params = {name: value for name, value in params.items() if name not in run.data.params}
        else:
            run = self._client.create_run(self._experiment, tags={"offline_agent.run_id": key}, run_name=name)
        self._runs[key] = run.info.run_id
        self._fill(key, params, tags)

    def _known(self, key: str) -> Any:
        return self._client.search_runs([self._experiment], f"tags.`offline_agent.run_id` = '{key}'", max_results=1)

    def _child(self, parent: str, key: str, name: str, params: dict[str, str], tags: dict[str, str]) -> None:
        own = {"mlflow.parentRunId": self._runs[parent]}
        self._runs[key] = self._client.create_run(self._experiment, tags=own, run_name=name).info.run_id
        self._fill(key, params, tags)

    def _fill(self, key: str, params: dict[str, str], tags: dict[str, str]) -> None:
        from mlflow.entities import Param

        entries = [Param(name[:_LONGEST_KEY], value[:_LONGEST_VALUE]) for name, value in params.items()]
        for start in range(0, len(entries), _PARAMS_AT_ONCE):
            self._client.log_batch(self._runs[key], params=entries[start : start + _PARAMS_AT_ONCE])
        self._tags(key, tags)

    def _tags(self, key: str, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        entries = [RunTag(name[:_LONGEST_KEY], str(value)[:_LONGEST_VALUE]) for name, value in tags.items()]
        for start in range(0, len(entries), _TAGS_AT_ONCE):
            self._client.log_batch(self._runs[key], tags=entries[start : start + _TAGS_AT_ONCE])

    def _metrics(self, key: str, values: dict[str, float], step: int, at: int) -> None:
        from mlflow.entities import Metric

        entries = [Metric(name[:_LONGEST_KEY], value, at, step) for name, value in values.items()]
        for start in range(0, len(entries), _METRICS_AT_ONCE):
            self._client.log_batch(self._runs[key], metrics=entries[start : start + _METRICS_AT_ONCE])

    def _artifact(self, key: str, path: str, folder: str | None) -> None:
        self._client.log_artifact(self._runs[key], path, folder)

    def _end(self, key: str, status: str) -> None:
        self._client.set_terminated(self._runs.pop(key), status=status)


def _sqlite_folder(uri: str) -> Path | None:
    """Return (and make) the folder of an SQLite store, beside which artifacts go; None for any other store."""
    if not uri.startswith("sqlite:///"):
        return None
    folder = Path(uri.removeprefix("sqlite:///").partition("?")[0]).resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _serve(source: TextIO, answers: TextIO) -> int:
    """Carry out messages until the pipe closes; the first fault is answered and ends it."""
    worker = _Worker()
    try:
        for line in source:
            worker.handle(json.loads(line))
        worker.interrupt()
    except BaseException as error:
        text = " ".join(str(error).split())
        answers.write(f"{type(error).__name__}: {text[:300]}\n")
        answers.flush()
        for _ in source:  # keep reading, so that the job does not see a broken pipe
            pass
    return 0


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.nice(10)
    _answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever MLflow prints is not an answer
    sys.exit(_serve(sys.stdin, _answers))
