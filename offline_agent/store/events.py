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
from typing import Any

import orjson

from offline_agent.errors import DataError
from offline_agent.store import event_files as parts
from offline_agent.store.event_files import START, Sealed, lines
from offline_agent.store.files import disk_errors, sync_folder

PART_BYTES = 64 << 20
"""A log that has grown to this size goes on in another file; what is in whole files is not read again for nothing."""

_SYNC_SECONDS = 1.0
_exact = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_OPTIONS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME

LOG_VERSION = 2
"""Version of a log's records: 2 leaves out what has its usual value, which readers of version 1 look for."""

_READ = (1, LOG_VERSION)


def _dumps(record: Mapping[str, Any]) -> bytes:
    """Return a record as compact JSON. Raises ValueError or TypeError where it is none."""
    try:
        body = orjson.dumps(record, option=_OPTIONS)
    except TypeError:  # lone surrogates, long integers, keys that are numbers: what is none is refused below
        return _exact(record).encode("ascii")
    if b"null" in body and orjson.loads(body) != record:  # it is written for numbers that are not finite, too
        return _exact(record).encode("ascii")
    return body


def _encode(record: Mapping[str, Any], before: int) -> tuple[bytes, int]:
    body = _dumps(record)
    crc = zlib.crc32(body, before)
    rest = b"," + body[1:] if len(body) > 2 else b"}"
    return b'%s%08x"%s\n' % (START, crc, rest), crc


class EventLog:
    """The log of one shard. Appending is thread-safe; one process at a time may append (`RunDirectory` locks).

    A line is `{"crc":"<8 hex digits>", ...the record}`; the first says the schema version. The checksum is the
    CRC-32 of the record's compact JSON, started from the checksum of the line before. A long log goes on in further
    files (`<name>~000001.jsonl` …), each with its header and chained to the file before; beside a file that is full
    lies an index, which says of which trees it has records (`parts`). So does a log whose last file is of an earlier
    version.

    Args:
        path: The first file; made at the first append. A torn last line is cut off then.
        part_bytes: Size at which a file is full.
    """

    def __init__(self, path: Path, part_bytes: int = PART_BYTES) -> None:
        self.path = path
        self._part_bytes = part_bytes
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._now = path  # the file that is appended to
        self._number = 0
        self._before = 0  # checksum at its beginning
        self._trees: set[str] = set()  # of which it has records
        self._crc = 0
        self._size = 0
        self._older = False  # the file's records are of an earlier version: the next one goes into another file
        self._synced = monotonic()
        self._dirty = False
        self._broken: str | None = None

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and hand it to the operating system before returning; on disk within about a second.

        Args:
            record: JSON-serialisable; finite numbers only. One of a tree names it under `tree`.

        Raises:
            DataError: The disk refused (the log still ends in a whole line), or what is there is broken.
            ValueError, TypeError: The record is not JSON.
        """
        with self._lock:
            fd = self._fd
            if fd is None:
                fd = self._open()
            if self._size >= self._part_bytes or self._older:
                fd = self._go_on(fd)
            self._put(fd, record)
            self._trees.add(parts.tree_of(record))
            now = monotonic()
            if now - self._synced >= _SYNC_SECONDS:
                self._sync(fd, now)

    def read(self, without: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield the records, oldest first. A torn last line is dropped; a missing file is an empty log.

        Args:
            without: Trees whose records are not wanted. Full files that have no others are not read.

        Raises:
            DataError: A line is broken, or the log is from another schema version; names file, line and what to do.
        """
        files = parts.files(self.path)
        crc = 0
        for number, path in enumerate(files):
            full = number + 1 < len(files)
            known = Sealed.load(path) if full and without else None
            if known is not None and known.before == crc and all(tree in without for tree in known.trees):
                crc = known.crc
                continue
            with disk_errors(path, "reading it"), open(path, "rb") as file:
                first, before = True, crc
                for body, crc, _ in lines(path, file, before, full):  # noqa: B007 - it goes on into the next file
                    record = json.loads(body)
                    if first:
                        _check_header(path, record)
                        first = False
                    elif not without or parts.tree_of(record) not in without:
                        yield record

    def create(self) -> None:
        """Make the file, durable, with its header; cut off a torn last line where it is there. Raises as `append`."""
        with self._lock:
            if self._fd is None:
                self._fd = self._open()
        self.close()

    def index(self) -> None:
        """Make the indexes that are missing or older than their files; such files are read and checked whole.

        Raises:
            DataError: A line is broken.
        """
        with self._lock:
            crc = 0
            for path in parts.files(self.path)[:-1]:
                crc = parts.sealed(path, crc).crc

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
        files = parts.files(self.path) or [self.path]
        before = 0
        for path in files[:-1]:
            before = parts.sealed(path, before).crc
        self._now, self._number, self._before = files[-1], len(files) - 1, before
        with disk_errors(self._now, "opening it"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            found = parts.scan(self._now, before)
            if found.header is not None:
                self._older = _check_header(self._now, json.loads(found.header)) < LOG_VERSION
            fd = os.open(self._now, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                os.ftruncate(fd, found.end)
                sync_folder(self.path.parent)
            except BaseException:
                os.close(fd)
                raise
        self._crc, self._size, self._trees = found.crc, found.end, found.trees
        if found.end == 0:
            try:
                self._put(fd, self._header())
            except BaseException:
                os.close(fd)
                raise
        self._fd = fd
        return fd

    def _go_on(self, full: int) -> int:
        """Begin the next file; the one that is full stays in use where that fails."""
        self._sync(full, monotonic())
        old, path = self._now, parts.path_of(self.path, self._number + 1)
        size, crc = self._size, self._crc
        with disk_errors(path, "making it"):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            self._now, self._size = path, 0
            self._put(fd, self._header())
            self._sync(fd, monotonic())
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(fd)
            self._now, self._size, self._crc, self._fd = old, size, crc, full
            raise
        before, trees = self._before, self._trees
        self._number, self._before, self._trees, self._fd = self._number + 1, crc, set(), fd
        self._older = False
        os.close(full)
        parts.write_index(old, before, crc, trees)
        return fd

    def _header(self) -> dict[str, Any]:
        return {"event_log": self.path.stem, "schema_version": LOG_VERSION}

    def _put(self, fd: int, record: Mapping[str, Any]) -> None:
        line, crc = _encode(record, self._crc)
        with disk_errors(self._now, "appending to it"):
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
        self._broken = f"{self._now}: a write failed half-way and could not be undone. Give the same command again."
        self._fd = None

    def _sync(self, fd: int, now: float) -> None:
        with disk_errors(self._now, "making it durable"):
            os.fsync(fd)
        self._synced = now
        self._dirty = False


def _check_header(path: Path, record: Mapping[str, Any]) -> int:
    """Return the version of a file's records; raises DataError where this program cannot read it."""
    version = record.get("schema_version")
    if "event_log" not in record or version not in _READ:
        raise DataError(
            f"{path}: schema version {version!r}, this program reads {' and '.join(map(str, _READ))}. Use the version "
            "of offline_agent that wrote it, or name another run_dir; nothing was changed."
        )
    return int(version)
