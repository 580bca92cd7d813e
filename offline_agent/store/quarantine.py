"""Quarantine file of a run: refused items with their reasons, each entry once, one JSON object and checksum a line."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_agent.errors import DataError
from offline_agent.outgoing import masked
from offline_agent.records import SCHEMA_VERSION
from offline_agent.store.event_files import START
from offline_agent.store.files import disk_errors

_CRC = len(START) + 9  # bytes up to and with the quote after 8 hex digits
_PLAIN = b'{"schema_version": '  # start of a line of an earlier version, which has no checksum
_MEND = "Restore the file from a copy, or move it away: items that are refused again are listed again."


class Quarantine:
    """The file `quarantine.jsonl`. Thread-safe. An entry is identified by (kind, name, reason).

    A line is `{"crc":"<8 hex digits>", ...the entry}`; the checksum is the CRC-32 of the entry's JSON, started from the
    checksum of the line before. Lines without a checksum, written by earlier versions, may come before the first line
    that has one; its checksum covers them.

    Memory holds a 64-bit hash of each entry: with a million entries, the chance of a collision is one in 40 million.

    Args:
        path: The file; read when the first entry is added (an incomplete last line is dropped).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._seen: DigestSet | None = None  # None = the file was not read yet
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
            line, crc = _encode(row, self._crc)
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

    def _load(self) -> DigestSet:
        if self._seen is None:
            seen, counts, size, crc = DigestSet(), Counter[str](), 0, 0
            for row, crc, size in _rows(self.path):  # noqa: B007 - the values of the last line are kept
                seen.add(_key(row["kind"], row["name"], row["reason"]))
                counts[row["kind"]] += 1
            self._seen, self._counts, self._size, self._crc = seen, counts, size, crc
        return self._seen


class DigestSet:
    """A set of 64-bit numbers in sorted arrays (8 bytes each); the newest are in a Python set until it is full."""

    def __init__(self, newest: int = 1 << 15) -> None:
        self._most = newest
        self._newest: set[int] = set()
        self._arrays: list[NDArray[np.uint64]] = []  # each at least twice as long as the one after it

    def add(self, number: int) -> bool:
        """Add a number and return whether it is new."""
        if number in self:
            return False
        self._newest.add(number)
        if len(self._newest) >= self._most:
            self._settle()
        return True

    def __contains__(self, number: int) -> bool:
        """Return whether a number was added."""
        if number in self._newest:
            return True
        value = np.uint64(number)
        for array in self._arrays:
            at = int(np.searchsorted(array, value))
            if at < len(array) and array[at] == value:
                return True
        return False

    def __len__(self) -> int:
        """Return the number of numbers."""
        return len(self._newest) + sum(map(len, self._arrays))

    def _settle(self) -> None:
        new = np.sort(np.fromiter(self._newest, np.uint64, len(self._newest)))
        self._newest = set()
        while self._arrays and len(self._arrays[-1]) < 2 * len(new):
            new = np.sort(np.concatenate([self._arrays.pop(), new]), kind="stable")
        self._arrays.append(new)


def _key(kind: str, name: str, reason: str) -> int:
    text = json.dumps([kind, name, reason]).encode("ascii")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _encode(row: dict[str, Any], before: int) -> tuple[bytes, int]:
    """Return an entry's line and its checksum."""
    body = json.dumps(row, allow_nan=False).encode("ascii")
    crc = zlib.crc32(body, before)
    return b'%s%08x", %s\n' % (START, crc, body[1:]), crc


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yield (entry, checksum, end of line in bytes) of every line; see `Quarantine.read`."""
    if not path.exists():
        return
    end = crc = 0
    checked = False  # whether a line with a checksum has come
    with disk_errors(path, "reading it"), open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            checked |= line.startswith(START)
            if not checked and line.startswith(_PLAIN):
                body = line[:-1]
                crc = zlib.crc32(body, crc)
            elif line.startswith(START):
                body = b"{" + line[_CRC + 2 : -1]
                crc = zlib.crc32(body, crc)
                if line[: _CRC + 2] != b'%s%08x", ' % (START, crc):
                    raise DataError(
                        f"{path}, line {number}: its checksum does not fit: the line was altered, or a line before it "
                        f"is missing. {_MEND}"
                    )
            else:
                raise DataError(f"{path}, line {number}: it has no checksum: the line was altered. {_MEND}")
            try:
                row = json.loads(body)
                sound = row["schema_version"] == SCHEMA_VERSION and {"kind", "name", "reason"} <= row.keys()
            except (ValueError, KeyError, TypeError, AttributeError):
                sound = False
            if not sound:
                raise DataError(f"{path}, line {number}: broken, or not of schema version {SCHEMA_VERSION}. {_MEND}")
            end += len(line)
            yield row, crc, end
