"""The log of a capture: one JSON object a line, each written whole before the agent gets its answer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from offline_agent.errors import DataError


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

    def call(self, session: str | None, request: Mapping[str, Any], response: Mapping[str, Any]) -> None:
        """Keep a call that was answered; `request` is its body, without headers.

        Raises:
            OSError: The disk refused.
        """
        known = {} if session is None else {"session_id": session}
        self._write({**known, "time": _now(), "request": request, "response": response})
        self.calls += 1

    def outcome(self, session: str, told: Mapping[str, Any]) -> None:
        """Keep the outcome of a session.

        Raises:
            OSError: The disk refused.
        """
        self._write({**told, "session_id": session, "time": _now()})
        self.outcomes += 1

    def close(self) -> None:
        """Close the file."""
        os.fsync(self._file)
        os.close(self._file)

    def _write(self, record: Mapping[str, Any]) -> None:
        line = memoryview(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        while line:  # a nearly full disk takes a part
            line = line[os.write(self._file, line) :]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
