"""The log of a capture: one JSON object a line, each written whole before the agent gets its answer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError
from offline_agent.logs import strict_json


class CallLog:
    """A file of calls and outcomes, `calls-<time>-<process>.jsonl`.

    A line is one `write` to a file that is opened for appending, so it outlives a killed process; what a failing disk
    keeps is the system's matter. A line that is cut is named by `import_logs`, and costs no other line.

    Args:
        folder: The folder; it is made.

    Attributes:
        path: The file.
        calls, outcomes: Lines written.

    Raises:
        DataError: The folder or the file cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"calls-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}.jsonl"
        self.calls = self.outcomes = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except (OSError, ValueError) as error:
            raise DataError(f"log: {str(folder)!r:.80} cannot be written: {error}") from error

    def call(self, session: str | None, request: bytes, response: bytes) -> None:
        """Keep a call that was answered; `request` and `response` are bodies, JSON on one line.

        Raises:
            OSError: The disk refused.
        """
        known = {} if session is None else {"session_id": session}
        head = strict_json.dumps({**known, "time": _now()})[:-1]
        self._write(head + b',"request":' + request + b',"response":' + response + b"}\n")
        self.calls += 1

    def outcome(self, session: str, told: Mapping[str, Any]) -> None:
        """Keep the outcome of a session.

        Raises:
            OSError: The disk refused.
        """
        self._write(strict_json.dumps({**told, "session_id": session, "time": _now()}) + b"\n")
        self.outcomes += 1

    def close(self) -> None:
        """Close the file."""
        os.fsync(self._file)
        os.close(self._file)

    def _write(self, record: bytes) -> None:
        line = memoryview(record)
        while line:  # a nearly full disk takes a part
            line = line[os.write(self._file, line) :]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
