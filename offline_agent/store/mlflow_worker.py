"""Process that talks to MLflow: it executes the messages on its standard input and reports the first error."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

_KEY = "offline_agent.run_id"  # the tag by which a run is found again
_PARENT = "offline_agent.parent"  # the same of the run above it, whose own process may reach MLflow later
_MLFLOW_PARENT = "mlflow.parentRunId"
_AT_ONCE = 100  # parameters, tags or metrics
_LONGEST_VALUE, _LONGEST_KEY = 6000, 250


class MLflowWriter:
    """Executes messages with MLflow; executing a message twice has the same effect as once."""

    def __init__(self) -> None:
        self._runs: dict[str, str] = {}
        self._experiment = ""
        self._client: Any = None
        self._file: Path | None = None  # the database file of an SQLite store

    def handle(self, message: dict[str, Any]) -> None:
        """Execute a message; raises whatever MLflow raises."""
        if message["op"] == "open":
            # The import takes seconds: do it before taking the lock that other runs wait for.
            import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

            self._file = sqlite_file(message["uri"])
        with alone(self._file):
            getattr(self, "_" + message.pop("op"))(**message)

    def interrupt(self) -> None:
        """End the open runs as killed: the sending process ended without closing them."""
        with alone(self._file):
            for key in list(self._runs):
                self._end(key, "KILLED")

    def _open(self, uri: str, experiment: str) -> None:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        if self._file is not None and not (self._file.exists() and self._file.stat().st_size):
            create(self._file)
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(experiment)
        if found is None:
            where = {} if self._file is None else {"artifact_location": (self._file.parent / "mlruns").as_uri()}
            try:
                self._experiment = self._client.create_experiment(experiment, **where)
            except MlflowException:  # another job made it in between
                self._experiment = self._client.get_experiment_by_name(experiment).experiment_id
        else:
            self._experiment = found.experiment_id

    def _start(
        self, name: str, key: str, params: dict[str, str], tags: dict[str, str], at: int, parent: str | None = None
    ) -> None:
        from mlflow.entities import Param

        before = self._tagged(_KEY, key)
        if before:
            run = before[0]
            self._client.update_run(run.info.run_id, status="RUNNING")
            params = {name: value for name, value in params.items() if key_of(name) not in run.data.params}
        else:
            own = {_KEY: key} if parent is None else {_KEY: key, _PARENT: parent}
            run = self._client.create_run(self._experiment, start_time=at, tags=own, run_name=name)
        self._runs[key] = run.info.run_id
        self._log(key, "params", [Param(key_of(name), value[:_LONGEST_VALUE]) for name, value in params.items()])
        self._tags(key, tags)
        # both ends look for the other after they wrote themselves down, so the later one joins them
        for child in self._tagged(_PARENT, key):
            self._client.set_tag(child.info.run_id, _MLFLOW_PARENT, run.info.run_id)
        for above in self._tagged(_KEY, parent) if parent is not None else ():
            self._client.set_tag(run.info.run_id, _MLFLOW_PARENT, above.info.run_id)

    def _tagged(self, tag: str, key: str) -> Any:
        return self._client.search_runs([self._experiment], f"tags.`{tag}` = '{key}'")

    def _log(self, key: str, kind: str, entries: list[Any]) -> None:
        """Send entries, as many at once as MLflow takes."""
        for start in range(0, len(entries), _AT_ONCE):
            self._client.log_batch(self._runs[key], **{kind: entries[start : start + _AT_ONCE]})

    def _tags(self, key: str, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        self._log(key, "tags", [RunTag(key_of(name), str(value)[:_LONGEST_VALUE]) for name, value in tags.items()])

    def _metrics(self, key: str, values: dict[str, float], step: int, at: int) -> None:
        from mlflow.entities import Metric

        self._log(key, "metrics", [Metric(key_of(name), value, at, step) for name, value in values.items()])

    def _artifact(self, key: str, path: str, folder: str | None) -> None:
        self._client.log_artifact(self._runs[key], path, folder)

    def _end(self, key: str, status: str, at: int | None = None) -> None:
        self._client.set_terminated(self._runs.pop(key), status=status, end_time=at)


def key_of(name: str) -> str:
    """Return a name as MLflow takes it: word characters and `.- :/`, and a normal relative path."""
    parts = re.sub(r"[^/\w.\- :]", "_", name)[:_LONGEST_KEY].split("/")
    return "/".join("_" if part in (".", "..") else part for part in parts if part) or "_"


def sqlite_file(uri: str) -> Path | None:
    """Return the file of an SQLite store and create its folder; None for any other store."""
    if not uri.startswith("sqlite:///"):
        return None
    file = Path(uri.removeprefix("sqlite:///").partition("?")[0]).resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


@contextlib.contextmanager
def alone(file: Path | None) -> Iterator[None]:
    """Hold a lock on an SQLite store inside the block, against the processes of other runs; else do nothing."""
    if file is None:
        yield
        return
    lock = os.open(file.with_name(f".{file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def create(file: Path) -> None:
    """Create an SQLite store atomically: a process killed while it creates the tables leaves no partial store."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    fresh = file.with_name(f".{file.name}.tmp")
    for left in file.parent.glob(f"{glob.escape(fresh.name)}*"):  # files of a killed process, its journal included
        left.unlink()
    SqlAlchemyStore(f"sqlite:///{fresh}", (file.parent / "mlruns").as_uri()).engine.dispose()
    os.replace(fresh, file)


def serve(source: TextIO, answers: TextIO) -> int:
    """Execute messages until the pipe closes; the first error is reported and ends the execution."""
    worker = MLflowWriter()
    try:
        for number, line in enumerate(source):
            worker.handle(json.loads(line))
            if number == 0:  # not before MLflow runs: at a low priority it does not start on a loaded machine
                with contextlib.suppress(OSError):
                    os.nice(10)
        worker.interrupt()
    except BaseException as error:
        text = " ".join(str(error).split())
        answers.write(f"{type(error).__name__}: {text[:300]}\n")
        answers.flush()
        for _ in source:  # keep reading, so that the sender does not get a broken pipe
            pass
    return 0


if __name__ == "__main__":
    _answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # MLflow's own output must not be read as an answer
    sys.exit(serve(sys.stdin, _answers))
