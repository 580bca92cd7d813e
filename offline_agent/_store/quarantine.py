"""What was refused, and why: one JSON object a line, each said once however often a run is resumed."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offline_agent._store.files import disk_errors
from offline_agent.errors import DataError
from offline_agent.records import SCHEMA_VERSION


class Quarantine:
    """The file `quarantine.jsonl`. Thread-safe. An entry is known by (kind, name, reason).

    Args:
        path: The file; read at once where it exists (a torn last line is dropped).

    Raises:
        DataError: A line is broken or from another schema version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._seen: set[tuple[str, str, str]] = set()
        self._size = 0
        self.counts: Counter[str] = Counter()
        for row, end in _rows(path):
            self._remember(row)
            self._size = end

    def add(self, kind: str, name: str, reason: str, **facts: Any) -> bool:
        """Write an entry, unless it is there already.

        Args:
            kind: What was refused: `task`, `branch`, `pair`, `trajectory` …
            name: Which one; the same thing has the same name in every run.
            reason: One readable sentence.
            facts: JSON-serialisable details.

        Returns:
            Whether it is new.

        Raises:
            DataError: The disk refused.
        """
        with self._lock:
            if (kind, name, reason) in self._seen:
                return False
            row = {"schema_version": SCHEMA_VERSION, "kind": kind, "name": name, "reason": reason, **facts}
            line = json.dumps(row, allow_nan=False).encode("ascii") + b"\n"
            with disk_errors(self.path, "appending to it"):
                if self._fd is None:
                    self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
                    os.ftruncate(self._fd, self._size)
                written = 0
                while written < len(line):  # a failed write is overwritten by the next, so no half line stays
                    written += os.pwrite(self._fd, line[written:], self._size + written)
            self._size += len(line)
            self._remember(row)
            return True

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the entries, oldest first."""
        for row, _ in _rows(self.path):
            yield row

    def close(self) -> None:
        """Make the file durable and close it."""
        with self._lock:
            if self._fd is None:
                return
            fd, self._fd = self._fd, None
            try:
                with disk_errors(self.path, "making it durable"):
                    os.ftruncate(fd, self._size)
                    os.fsync(fd)
            finally:
                os.close(fd)

    def _remember(self, row: dict[str, Any]) -> None:
        self._seen.add((row["kind"], row["name"], row["reason"]))
        self.counts[row["kind"]] += 1


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    if not path.exists():
        return
    end = 0
    with disk_errors(path, "reading it"), open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            try:
                row = json.loads(line)
                sound = row["schema_version"] == SCHEMA_VERSION and {"kind", "name", "reason"} <= row.keys()
            except (ValueError, KeyError, TypeError, AttributeError):
                sound = False
            if not sound:
                raise DataError(
                    f"{path}, line {number}: broken, or not of schema version {SCHEMA_VERSION}. Restore the file from "
                    f"a copy, or move it away: what is refused again is listed again."
                )
            yield row, end
