"""An append-only log: one JSON object a line, each with a checksum that is chained to the line before."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

from offline_agent._store.files import disk_errors, sync_folder
from offline_agent.errors import DataError
from offline_agent.records import SCHEMA_VERSION

_SYNC_SECONDS = 1.0
_START = b'{"crc":"'
_BODY = len(_START) + 9  # 8 hex digits and the closing quote
_MEND = (
    "Restore the file from a copy, or name another run_dir to start anew; nothing was changed here. "
    "The lines before the broken one are sound."
)
_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _encode(record: Mapping[str, Any], before: int) -> tuple[bytes, int]:
    body = _dumps(record).encode("ascii")
    crc = zlib.crc32(body, before)
    rest = b"," + body[1:] if len(body) > 2 else b"}"
    return b'%s%08x"%s\n' % (_START, crc, rest), crc


def _check(line: bytes, before: int) -> tuple[bytes, int] | None:
    """Return the record's JSON and its checksum, or None when the line is broken."""
    rest = line[_BODY:-1]
    if not line.startswith(_START) or rest[:1] not in (b",", b"}"):
        return None
    body = b"{" + rest[1:] if rest[:1] == b"," else b"{}"
    crc = zlib.crc32(body, before)
    return (body, crc) if line[len(_START) : _BODY] == b'%08x"' % crc else None


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Yield (JSON, checksum, end of line in bytes) of every sound line; a last line without its end is dropped."""
    crc, end = 0, 0
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            return
        found = _check(line, crc)
        if found is None:
            raise DataError(
                f"{path}, line {number}: its checksum does not fit: the line was altered, or a line before it "
                f"is missing. {_MEND}"
            )
        body, crc = found
        end += len(line)
        yield body, crc, end


class EventLog:
    """The log of one shard. Appending is thread-safe; one process at a time may append (`RunDirectory` locks).

    A line is `{"crc":"<8 hex digits>", ...the record}`; the first says the schema version. The checksum is the
    CRC-32 of the record's compact JSON, started from the checksum of the line before.

    Args:
        path: The file; made at the first append. A torn last line is cut off then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._crc = 0
        self._size = 0
        self._synced = monotonic()
        self._dirty = False
        self._broken: str | None = None

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and hand it to the operating system before returning; on disk within about a second.

        Args:
            record: JSON-serialisable; finite numbers only.

        Raises:
            DataError: The disk refused (the log still ends in a whole line), or what is there is broken.
            ValueError, TypeError: The record is not JSON.
        """
        with self._lock:
            fd = self._fd
            if fd is None:
                fd = self._open()
            self._put(fd, record)
            now = monotonic()
            if now - self._synced >= _SYNC_SECONDS:
                self._sync(fd, now)

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the records, oldest first. A torn last line is dropped; a missing file is an empty log.

        Raises:
            DataError: A line is broken, or the log is from another schema version; names file, line and what to do.
        """
        if not self.path.exists():
            return
        with disk_errors(self.path, "reading it"), open(self.path, "rb") as file:
            first = True
            for body, _, _ in _lines(self.path, file):
                record = json.loads(body)
                if first:
                    _check_header(self.path, record)
                    first = False
                    continue
                yield record

    def create(self) -> None:
        """Make the file, durable, with its header; cut off a torn last line where it is there. Raises as `append`."""
        with self._lock:
            if self._fd is None:
                self._fd = self._open()
        self.close()

    def close(self) -> None:
        """Make everything durable and close the file; the log can be appended to again."""
        with self._lock:
            if self._fd is None:
                return
            fd, self._fd = self._fd, None
            try:
                if self._dirty:
                    self._sync(fd, monotonic())
            finally:
                os.close(fd)

    def _open(self) -> int:
        if self._broken:
            raise DataError(self._broken)
        with disk_errors(self.path, "opening it"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            crc, end = self._sound_part()
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                os.ftruncate(fd, end)
                sync_folder(self.path.parent)
            except BaseException:
                os.close(fd)
                raise
        self._crc, self._size = crc, end
        if end == 0:
            try:
                self._put(fd, {"event_log": self.path.stem, "schema_version": SCHEMA_VERSION})
            except BaseException:
                os.close(fd)
                raise
        self._fd = fd
        return fd

    def _sound_part(self) -> tuple[int, int]:
        """Return the last checksum and the length in bytes of the whole lines in the file."""
        crc, end = 0, 0
        if self.path.exists():
            with open(self.path, "rb") as file:
                for body, line_crc, line_end in _lines(self.path, file):
                    if end == 0:
                        _check_header(self.path, json.loads(body))
                    crc, end = line_crc, line_end
        return crc, end

    def _put(self, fd: int, record: Mapping[str, Any]) -> None:
        line, crc = _encode(record, self._crc)
        with disk_errors(self.path, "appending to it"):
            try:
                written = os.write(fd, line)
                while written < len(line):
                    written += os.write(fd, line[written:])
            except BaseException:
                self._undo(fd)
                raise
        self._crc = crc
        self._size += len(line)
        self._dirty = True

    def _undo(self, fd: int) -> None:
        # A record is there whole or not at all, so that a later append cannot land behind half a line.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, self._size)
            return
        self._broken = f"{self.path}: a write failed half-way and could not be undone. Give the same command again."
        self._fd = None

    def _sync(self, fd: int, now: float) -> None:
        with disk_errors(self.path, "making it durable"):
            os.fsync(fd)
        self._synced = now
        self._dirty = False


def _check_header(path: Path, record: Mapping[str, Any]) -> None:
    version = record.get("schema_version")
    if "event_log" not in record or version != SCHEMA_VERSION:
        raise DataError(
            f"{path}: schema version {version!r}, this program reads {SCHEMA_VERSION}. Use the version of "
            f"offline_agent that wrote it, or name another run_dir; nothing was changed."
        )
