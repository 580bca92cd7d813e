"""An append-only log: one JSON object a line, each with a checksum that is chained to the line before."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import orjson

from offline_agent.errors import DataError
from offline_agent.store.files import disk_errors, sync_folder, write_pictures

LOG_VERSION = 3
"""Version of the records."""

_START = b'{"crc":"'
_BODY = len(_START) + 9  # 8 hex digits and the closing quote
_MEND = (
    "Restore the file from a copy, or name another run_dir to start anew; nothing was changed here. "
    "The lines before the broken one are sound."
)
_SYNC_SECONDS = 1.0
_exact = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_OPTIONS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def encode(record: Mapping[str, Any], before: int) -> tuple[bytes, int]:
    """Return the line of a record and its checksum, which is the CRC-32 of its JSON started from the one before.

    Raises:
        ValueError, TypeError: The record is not JSON-serialisable.
    """
    body = _dumps(record)
    crc = zlib.crc32(body, before)
    rest = b"," + body[1:] if len(body) > 2 else b"}"
    return b'%s%08x"%s\n' % (_START, crc, rest), crc


def _dumps(record: Mapping[str, Any]) -> bytes:
    try:
        body = orjson.dumps(record, option=_OPTIONS)
    except TypeError:  # lone surrogates, long integers, numeric keys: the standard encoder accepts or refuses them
        return _exact(record).encode("ascii")
    if b"null" in body and orjson.loads(body) != record:  # orjson writes null for NaN and infinity: refuse those
        return _exact(record).encode("ascii")
    return body


def lines(path: Path, file: BinaryIO, mend: str) -> Iterator[tuple[bytes, int, int]]:
    """Yield (JSON, checksum, end of line in bytes) of every sound line; an incomplete last line is dropped.

    Args:
        path: Path of the file, for messages.
        file: The file, opened at its start.
        mend: Instruction for the user where a line is broken.

    Raises:
        DataError: A checksum does not match.
    """
    end = crc = 0
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            return
        rest = line[_BODY:-1]
        body = b"{" + rest[1:].lstrip(b" ") if rest[:1] == b"," else b"{}"
        crc = zlib.crc32(body, crc)
        if line[:_BODY] != b'%s%08x"' % (_START, crc) or rest[:1] not in (b",", b"}"):
            raise DataError(
                f"{path}, line {number}: its checksum does not fit: the line was altered, or a line before it "
                f"is missing. {mend}"
            )
        end += len(line)
        yield body, crc, end


def tree_of(record: Mapping[str, Any]) -> str:
    """Return the tree id of a record; "" where it belongs to no tree (no tree has this id)."""
    tree = record.get("tree")
    return "" if tree is None else str(tree)


class EventLog:
    """The log of one shard. Appending is thread-safe; one process at a time may append (`RunDirectory` locks).

    A line is `{"crc":"<8 hex digits>", ...the record}` (`encode`); the first line gives the schema version.

    Args:
        path: The file; created at the first append, which also removes an incomplete last line.
        mend: None; for a file without the first line, what the user is told to do where a line is broken.
    """

    def __init__(self, path: Path, mend: str | None = None) -> None:
        self.path = path
        self._headed, self._mend = mend is None, mend or _MEND
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._crc = 0
        self._size = 0
        self._synced = monotonic()
        self._dirty = False
        self._broken: str | None = None

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record to the operating system before returning; it is on disk within about a second.

        Args:
            record: JSON-serialisable; finite numbers only. A record of a tree has the tree's id under `tree`.

        Raises:
            DataError: The disk refused (the log still ends in a complete line), or the existing log is broken.
            ValueError, TypeError: The record is not JSON-serialisable.
        """
        with self._lock:
            fd = self._open() if self._fd is None else self._fd
            self._put(fd, record)
            now = monotonic()
            if now - self._synced >= _SYNC_SECONDS:
                self._sync(fd, now)

    def read(self, without: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield the records, oldest first. An incomplete last line is dropped; a missing file is an empty log.

        Args:
            without: Tree ids whose records are left out.

        Raises:
            DataError: A line is broken, or the log has another schema version; names file, line and the remedy.
        """
        if not self.path.exists():
            return
        with disk_errors(self.path, "reading it"), open(self.path, "rb") as file:
            for number, (body, _, _) in enumerate(lines(self.path, file, self._mend)):
                record = json.loads(body)
                if number == 0 and self._headed:
                    _check_header(self.path, record)
                elif not without or tree_of(record) not in without:
                    yield record

    def create(self) -> None:
        """Create the file with its header, durably; remove an incomplete last line of an old file. See `append`."""
        with self._lock:
            if self._fd is None:
                self._open()
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
            header, self._crc, self._size = self._scan()
            if header is not None and self._headed:
                _check_header(self.path, header)
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                os.ftruncate(fd, self._size)
                sync_folder(self.path.parent)
                if header is None and self._headed:
                    self._put(fd, {"event_log": self.path.stem, "schema_version": LOG_VERSION})
            except BaseException:
                os.close(fd)
                raise
        self._fd = fd
        return fd

    def _scan(self) -> tuple[dict[str, Any] | None, int, int]:
        """Return the header, and checksum and length in bytes after the last complete line; all lines are checked."""
        header, crc, end = None, 0, 0
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            for body, crc, end in lines(self.path, file, self._mend):  # noqa: B007 - those of the last line are kept
                header = json.loads(body) if header is None else header
        return header, crc, end

    def _put(self, fd: int, record: Mapping[str, Any]) -> None:
        line, crc = encode(record, self._crc)
        if self._headed:  # before the record: it must find them
            write_pictures(line, self.path.parent.parent)
        try:
            written = os.write(fd, line)
            while written < len(line):
                written += os.write(fd, line[written:])
        except BaseException:
            self._undo(fd)
            with disk_errors(self.path, "appending to it"):
                raise
        self._crc = crc
        self._size += len(line)
        self._dirty = True

    def _undo(self, fd: int) -> None:
        # Remove a partly written record, so that a later append cannot follow an incomplete line.
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
    """Raise DataError where this program cannot read the records of a file."""
    version = record.get("schema_version")
    if "event_log" not in record or version != LOG_VERSION:
        raise DataError(
            f"{path}: schema version {version!r}, allowed: {LOG_VERSION}. Use the version of offline_agent that wrote "
            "it, or name another run_dir; nothing was changed."
        )
