"""Quarantine file of a run: refused items with their reasons, each entry once, one JSON object and checksum a line."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError
from offline_agent.outgoing import masked
from offline_agent.records import SCHEMA_VERSION
from offline_agent.store.events import encode, lines
from offline_agent.store.files import disk_errors

_MEND = "Restore the file from a copy, or move it away: items that are refused again are listed again."


class Quarantine:
    """The file `quarantine.jsonl`. Thread-safe. An entry is identified by (kind, name, reason).

    Lines are those of event logs (`store.events.encode`), without a header.

    Memory holds a 64-bit hash of each entry: with a million entries, the chance of a collision is one in 40 million.

    Args:
        path: The file; read when the first entry is added (an incomplete last line is dropped).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._seen: set[int] | None = None  # None = the file was not read yet
        self._size = 0
        self._crc = 0  # of the last line
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Counter[str]:
        """Number of entries of each kind. Raises DataError as `add`."""
        with self._lock:
            self._load()
            return self._counts

    def add(self, kind: str, name: str, reason: str, **facts: Any) -> bool:
        """Write an entry, unless it exists already.

        Args:
            kind: Kind of the refused item: `task`, `branch`, `pair`, `trajectory` …
            name: Its name; the same item has the same name in every run.
            reason: One readable sentence.
            facts: JSON-serialisable details.

        Returns:
            Whether it is new.

        Raises:
            DataError: The disk refused, or an existing line is broken or of another schema version.
        """
        with self._lock:
            reason = masked(reason)
            seen, key = self._load(), _key(kind, name, reason)
            if key in seen:
                return False
            row = {"schema_version": SCHEMA_VERSION, "kind": kind, "name": name, "reason": reason, **facts}
            line, crc = encode(row, self._crc)
            with disk_errors(self.path, "appending to it"):
                if self._fd is None:
                    self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
                    os.ftruncate(self._fd, self._size)
                written = 0
                # pwrite at a fixed offset: after a failed write the next entry overwrites the incomplete line
                while written < len(line):
                    written += os.pwrite(self._fd, line[written:], self._size + written)
            self._size += len(line)
            self._crc = crc
            seen.add(key)
            self._counts[kind] += 1
            return True

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the entries, oldest first; an incomplete last line is dropped.

        Raises:
            DataError: A line is broken or of another schema version; names file, line and the remedy.
        """
        for row, _, _ in _rows(self.path):
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

    def _load(self) -> set[int]:
        if self._seen is None:
            seen, counts, size, crc = set[int](), Counter[str](), 0, 0
            for row, crc, size in _rows(self.path):  # noqa: B007 - the values of the last line are kept
                seen.add(_key(row["kind"], row["name"], row["reason"]))
                counts[row["kind"]] += 1
            self._seen, self._counts, self._size, self._crc = seen, counts, size, crc
        return self._seen


def _key(kind: str, name: str, reason: str) -> int:
    text = json.dumps([kind, name, reason]).encode("ascii")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yield (entry, checksum, end of line in bytes) of every line; see `Quarantine.read`."""
    if not path.exists():
        return
    with disk_errors(path, "reading it"), open(path, "rb") as file:
        for number, (body, crc, end) in enumerate(lines(path, file, _MEND), 1):
            row = json.loads(body)
            if row.get("schema_version") != SCHEMA_VERSION or not {"kind", "name", "reason"} <= row.keys():
                raise DataError(f"{path}, line {number}: broken, or not of schema version {SCHEMA_VERSION}. {_MEND}")
            yield row, crc, end
