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
from offline_agent.store import event_files
from offline_agent.store.event_files import START, FullFile, lines
from offline_agent.store.files import disk_errors, sync_folder

PART_BYTES = 64 << 20
"""Size in bytes at which a log continues in a new file; full files are not read again where their index suffices."""

_SYNC_SECONDS = 1.0
_exact = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_OPTIONS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME

LOG_VERSION = 2
"""Version of the records: version 2 leaves out fields with their default value, which readers of version 1 require."""

_READ = (1, LOG_VERSION)


def _dumps(record: Mapping[str, Any]) -> bytes:
    """Return a record as compact JSON. Raises ValueError or TypeError where it is not JSON-serialisable."""
    try:
        body = orjson.dumps(record, option=_OPTIONS)
    except TypeError:  # lone surrogates, long integers, numeric keys: the standard encoder accepts or refuses them
        return _exact(record).encode("ascii")
    if b"null" in body and orjson.loads(body) != record:  # orjson writes null for NaN and infinity: refuse those
        return _exact(record).encode("ascii")
    return body


def _encode(record: Mapping[str, Any], before: int) -> tuple[bytes, int]:
    body = _dumps(record)
    crc = zlib.crc32(body, before)
    rest = b"," + body[1:] if len(body) > 2 else b"}"
    return b'%s%08x"%s\n' % (START, crc, rest), crc


class EventLog:
    """The log of one shard. Appending is thread-safe; one process at a time may append (`RunDirectory` locks).

    A line is `{"crc":"<8 hex digits>", ...the record}`; the first line gives the schema version. The checksum is the
    CRC-32 of the record's compact JSON, started from the checksum of the line before. A long log continues in further
    files (`<name>~000001.jsonl` …), each with a header and chained to the file before, and so does a log whose last
    file is of an earlier version. Each full file has an index with the ids of its trees (`store.event_files`).

    Args:
        path: The first file; created at the first append, which also removes an incomplete last line.
        part_bytes: Size at which a file is full.
    """

    def __init__(self, path: Path, part_bytes: int = PART_BYTES) -> None:
        self.path = path
        self._part_bytes = part_bytes
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._now = path  # the file that is appended to
        self._number = 0
        self._before = 0  # checksum at its start
        self._trees: set[str] = set()  # trees that it has records of
        self._crc = 0
        self._size = 0
        self._older = False  # its records are of an earlier version: the next record goes into a new file
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
            fd = self._fd
            if fd is None:
                fd = self._open()
            if self._size >= self._part_bytes or self._older:
                fd = self._go_on(fd)
            self._put(fd, record)
            self._trees.add(event_files.tree_of(record))
            now = monotonic()
            if now - self._synced >= _SYNC_SECONDS:
                self._sync(fd, now)

    def read(self, without: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield the records, oldest first. An incomplete last line is dropped; a missing file is an empty log.

        Args:
            without: Tree ids whose records are left out. Full files with no other records are not read.

        Raises:
            DataError: A line is broken, or the log has another schema version; names file, line and the remedy.
        """
        files = event_files.files(self.path)
        crc = 0
        for number, path in enumerate(files):
            full = number + 1 < len(files)
            known = FullFile.load(path) if full and without else None
            if known is not None and known.before == crc and all(tree in without for tree in known.trees):
                crc = known.crc
                continue
            with disk_errors(path, "reading it"), open(path, "rb") as file:
                first, before = True, crc
                for body, crc, _ in lines(path, file, before, full):  # noqa: B007 - crc is used for the next file
                    record = json.loads(body)
                    if first:
                        _check_header(path, record)
                        first = False
                    elif not without or event_files.tree_of(record) not in without:
                        yield record

    def create(self) -> None:
        """Create the file with its header, durably; remove an incomplete last line of an old file. See `append`."""
        with self._lock:
            if self._fd is None:
                self._fd = self._open()
        self.close()

    def index(self) -> None:
        """Write the indexes that are missing or older than their files; those files are read and checked.

        Raises:
            DataError: A line is broken.
        """
        with self._lock:
            crc = 0
            for path in event_files.files(self.path)[:-1]:
                crc = event_files.full_file(path, crc).crc

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
        files = event_files.files(self.path) or [self.path]
        before = 0
        for path in files[:-1]:
            before = event_files.full_file(path, before).crc
        self._now, self._number, self._before = files[-1], len(files) - 1, before
        with disk_errors(self._now, "opening it"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            found = event_files.scan(self._now, before)
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
        """Start the next file; where that fails, the full file stays in use."""
        self._sync(full, monotonic())
        old, path = self._now, event_files.path_of(self.path, self._number + 1)
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
        event_files.write_index(old, before, crc, trees)
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
        # Remove a partly written record, so that a later append cannot follow an incomplete line.
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
    """Return the version of a file's records. Raises DataError where this program cannot read it."""
    version = record.get("schema_version")
    if "event_log" not in record or version not in _READ:
        raise DataError(
            f"{path}: schema version {version!r}, this program reads {' and '.join(map(str, _READ))}. Use the version "
            "of offline_agent that wrote it, or name another run_dir; nothing was changed."
        )
    return int(version)
