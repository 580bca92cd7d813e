"""Pipe to the process that talks to MLflow, and the file of messages that have not arrived yet."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import IO, Any

from offline_agent.outgoing import masked

NAME = "tracking.jsonl"
_QUIETLY, AT_MOST = 30.0, 600.0  # seconds of waiting before it is announced; seconds of waiting in all
_WORKING = 0.05  # seconds of processor time between two looks that show a working process

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "GIT_PYTHON_REFRESH": "quiet",
}


class UnsentMessages:
    """Messages that are kept until the other process has handled all of them. Used by one thread at a time.

    Args:
        path: The file, one JSON object a line; created with the first message, removed by `clear`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def waiting(self) -> list[str]:
        """Return the messages of earlier sessions, oldest first; an incomplete last line is removed. Raises OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))
        return whole.decode("utf-8", "replace").splitlines(keepends=True)

    def keep(self, line: str) -> None:
        """Append a message, one line. Raises OSError."""
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        data = line.encode()
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """Close the file without removing it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def clear(self) -> None:
        """Remove the file: all messages have arrived."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


class WorkerPipe:
    """The run's end of the pipe to the child process.

    Attributes:
        failed: Whether a message was not sent.
    """

    def __init__(
        self, uri: str, experiment: str, say: Callable[[str], None], timeout: float, run_dir: Path | None
    ) -> None:
        self.failed = False
        self._say = say
        self._timeout = timeout
        self._said = threading.Lock()
        self._root = Path(run_dir or ".").resolve()
        self._unsent = None if run_dir is None else UnsentMessages(self._root / NAME)
        self._open = {"op": "open", "uri": uri, "experiment": experiment, "root": str(self._root)}  # uri: never kept
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        package = str(Path(__file__).resolve().parents[3])
        paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "offline_agent.store.tracking.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
                env={**_QUIET, **os.environ, "PYTHONPATH": paths}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._fail(f"the tracking process did not start: {error}")
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._listen)]
        for thread in self._threads:
            thread.start()

    def place(self, path: Path) -> str:
        """Return a file's path, relative to the run directory where it is inside: the directory may be moved."""
        whole = Path(path).resolve()
        return str(whole.relative_to(self._root) if whole.is_relative_to(self._root) else whole)

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message for sending; secrets in it are masked."""
        self._queue.put(json.dumps(masked(message)) + "\n")

    def close(self, at_most: float = AT_MOST) -> None:
        """Wait until all messages are handled; what is not handled stays in the file.

        The wait ends after the time-out without a sign of life, which is processor time: starting MLflow and creating
        a store take minutes where other work has the processors.

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
            self._fail("the wait for MLflow was interrupted", "not everything was sent")
            raise
        finally:
            self._end()

    def _wait(self, process: subprocess.Popen[str], at_most: float) -> None:
        begun = heard = monotonic()
        used, told = processor_seconds(process.pid), False
        while True:
            try:
                process.wait(min(0.5, self._timeout))
                return
            except subprocess.TimeoutExpired:
                now, new = monotonic(), processor_seconds(process.pid)
            if new is not None and used is not None and new - used >= _WORKING:
                heard, used = now, new
            if now - heard >= self._timeout:
                self._fail(f"no answer for {self._timeout:g} s")
                return
            if now - begun >= at_most:
                self._fail(f"MLflow was still busy {at_most:g} s after the end", "not everything was sent")
                return
            if now - begun >= _QUIETLY and not told:
                told = True
                self._say(
                    f"tracking.uri: waiting for MLflow, at most {at_most:g} s (it starts slowly where the machine is "
                    f"loaded); Ctrl-C leaves it, {self._later()}"
                )

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
        if self._unsent is not None and self.failed:
            self._unsent.close()
        elif self._unsent is not None:
            self._unsent.clear()

    def _write(self) -> None:
        """Store each message, then send it; where the other process is gone, only store it."""
        pipe = self._process.stdin if self._process else None
        try:
            before = self._unsent.waiting() if self._unsent is not None else []
        except OSError as error:
            before = []
            self._fail(f"kept messages cannot be read: {error}")
        for line in (json.dumps(self._open) + "\n", *before):
            pipe = self._pass_on(line, pipe)
        while (line_or_end := self._queue.get()) is not None:
            try:
                if self._unsent is not None:
                    self._unsent.keep(line_or_end)
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

    def _fail(self, why: str, what: str = "tracking does not work") -> None:
        self.failed = True
        if not self._said.acquire(blocking=False):  # never released, so the message appears once
            return
        self._say(f"tracking.uri: {what} ({why}); the job goes on, {self._later()}")

    def _later(self) -> str:
        kept = "its records are in the run directory"
        if self._unsent is None:
            return kept
        command = shlex.join(["python", "-m", "offline_agent.pipelines.track", f"run_dir={self._root}"])
        return f"{kept} and are sent when the run is resumed, or by {command}"


def processor_seconds(pid: int) -> float | None:
    """Return the processor time that a process has used; None where the system does not say (no /proc)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
