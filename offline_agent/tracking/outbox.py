"""The file of a run's messages to tracking that are not known to have arrived: one JSON object a line."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NAME = "tracking.jsonl"


class Outbox:
    """Messages that are kept until all of them were carried out. Used by one thread at a time.

    Args:
        path: The file; made with the first message, removed by `clear`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def waiting(self) -> list[str]:
        """Return what earlier sessions left, oldest first; a torn last line is cut off. Raises OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))
        return whole.decode("utf-8", "replace").splitlines(keepends=True)

    def keep(self, line: str) -> None:
        """Add a message, a line. Raises OSError."""
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        data = line.encode()
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """Close the file and leave it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def clear(self) -> None:
        """Remove the file: everything has arrived."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
