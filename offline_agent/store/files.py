"""Atomic writes, safe file names, and disk errors with instructions for the user."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import IO, Any, BinaryIO
from urllib.parse import quote

from offline_agent import pictures
from offline_agent.errors import DataError
from offline_agent.outgoing import masked, shown

RATIO, FREE = 200, 64 << 20
"""Most bytes that a packed byte may give, and bytes up to which no ratio counts: a bomb gives a thousand and more."""

WHOLE, LINE = 1 << 30, 64 << 20
"""Most bytes of what is read in one piece, and of a line."""

SPECIAL = "it is a device, pipe or socket, allowed: a regular file"

_BLOCK = 1 << 20  # bytes; a multiple of every character's


def open_bytes(path: str | Path) -> BufferedReader:
    """Open a regular file for bytes.

    Raises:
        OSError: It cannot be opened, or is a device, a pipe or a socket, which may have no end.
    """
    return open(path, "rb", opener=_regular)


def open_text(path: str | Path) -> IO[str]:
    """Open a regular file for UTF-8 text. Raises as `open_bytes`."""
    return open(path, encoding="utf-8", opener=_regular)


def read_text(path: str | Path) -> str:
    """Return the UTF-8 text of a regular file. Raises as `open_bytes`, and UnicodeError."""
    with open_text(path) as file:
        return file.read()


def _regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # a pipe without a writer would wait
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # `open` refuses a folder itself
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"{SPECIAL}. Copy what it gives into a file and name that")


@contextmanager
def unpacked(path: Path) -> Iterator[BufferedIOBase]:
    """Open a file, compressed with gzip or not, for what is in it; read it by `blocks`. Raises as `open_bytes`."""
    with open_bytes(path) as file:
        packed = path.name.endswith(".gz") or file.read(2) == b"\x1f\x8b"
        file.seek(0)
        yield gzip.GzipFile(fileobj=file) if packed else file


def blocks(file: BufferedIOBase, name: str | Path, packed: int, most: int | None = None) -> Iterator[bytes]:
    """Yield the content of a file in blocks.

    Args:
        file: Open for reading, from its start.
        name, packed, most: See `check_unpacked`.

    Raises:
        DataError: There is more in it than is allowed.
    """
    size = 0
    while block := file.read1(_BLOCK):  # not `read`, which loses what stands before a damaged place
        size += len(block)
        check_unpacked(name, size, packed, most)
        yield block


def check_unpacked(name: str | Path, size: int, packed: int, most: int | None = None) -> None:
    """Raise DataError where an unpacked size is not allowed.

    Args:
        name: Of the file or its part, for messages.
        size: Bytes that are unpacked.
        packed: Bytes that they take in the file; as many where it is not compressed.
        most: Most bytes; None = the ratio alone counts.
    """
    if size > max(FREE, RATIO * packed):
        raise DataError(
            f"{name}: got {size:,} bytes or more out of {packed:,}, allowed: {RATIO} times as many, or {FREE:,}. "
            "Records do not compress so well; where they are sound, unpack the file and name that, or divide it"
        )
    if most is not None and size > most:
        raise DataError(
            f"{name}: got {size:,} bytes or more in one piece, allowed: {most:,}. Divide it, as JSON lines (.jsonl)"
        )


CHECKSUM = "checksum"
"""Key of a JSON file's object that `read_json` compares: `hash_json` of the rest, against damage and not forgery."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LONGEST_NAME = 120


@contextlib.contextmanager
def disk_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn an `OSError` inside the block into a `DataError` that names the file and the remedy.

    Raises:
        DataError: The disk is full, access is not permitted, or the device failed.
    """
    try:
        yield
    except OSError as error:
        raise DataError(_explain(path, doing, error)) from error


def _explain(path: Path, doing: str, error: OSError) -> str:
    said = error.strerror or str(error)
    if error.errno in _FULL:
        return (
            f"{path}: the disk is full ({said}) while {doing}. What was written before is sound: free some space and "
            f"give the same command again with this run_dir; it continues from here."
        )
    return f"{path}: {said} while {doing}. Nothing was removed; correct that and give the same command again."


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable; a no-op where folders cannot be synced."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, write: bytes | Callable[[BinaryIO], None]) -> Path:
    """Write a file atomically: temporary file, fsync, rename.

    Args:
        path: The file; its folder is created.
        write: The bytes, or a function that is called with the open temporary file.

    Raises:
        DataError: The disk refused; an older file of that name is unchanged.
    """
    with disk_errors(path, "writing it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not (path.is_file() or path.is_dir()):  # a rename would put a file in a device's place
            raise OSError(errno.EINVAL, SPECIAL)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(write) if isinstance(write, bytes) else write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)
    return path


_WRITING = threading.Lock()


def write_pictures(record: bytes, run: Path) -> None:
    """Write the pictures that a record names into `images/` of a run directory. Raises as `write_atomic`."""
    folder = run / pictures.FOLDER
    with _WRITING:  # two threads may come with the same picture
        made = pictures.missing(record, folder)
        for name, data in made.items():
            write_atomic(folder / name, data)
        pictures.saved(folder, made)


def write_text(path: Path, text: str) -> Path:
    """Write a text for readers atomically, as it would be printed (`outgoing.shown`). Raises as `write_atomic`."""
    return write_atomic(path, shown(text).encode())


def hash_json(data: Any) -> str:
    """Return 32 hex digits that identify a JSON value, independent of the order of its keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def write_json(path: Path, data: Mapping[str, Any]) -> Path:
    """Write a JSON object atomically, without secrets, and last its checksum. Raises as `write_atomic`.

    Two spaces a level, keys in the order given.
    """
    told = json.loads(json.dumps(masked(dict(data)), allow_nan=False))  # as it is read back
    told.pop(CHECKSUM, None)
    text = json.dumps({**told, CHECKSUM: hash_json(told)}, indent=2, ensure_ascii=False) + "\n"
    return write_atomic(path, text.encode("utf-8", "backslashreplace"))  # a lone surrogate becomes JSON's own escape


def read_json(path: Path, mend: str = "Restore it from a copy.") -> Any:
    """Return the JSON in `path`; of an object without its checksum, which files of earlier versions lack.

    Args:
        path: The file.
        mend: Instruction for the user where it is missing or broken.

    Raises:
        DataError: It is missing, unreadable, not JSON, or does not have its checksum.
    """
    try:
        with open_bytes(path) as file:
            found = json.loads(file.read())
        told = found.pop(CHECKSUM, None) if isinstance(found, dict) else None
        got = None if told is None else hash_json(found)
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing. {mend}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as JSON ({error}). {mend}") from error
    if told != got:
        raise DataError(
            f"{path}: it was changed after it was written: its content has the {CHECKSUM} {got}, allowed: {told!r}, "
            f"which it was written with. {mend} Where the change is meant, remove the key {CHECKSUM!r} from it."
        )
    return found


def safe_name(name: str) -> str:
    """Return a file name for any text: percent-encoded; a long one is cut and gets a hash after `~`.

    Names without `~` can be turned back with `urllib.parse.unquote`.
    """
    quoted = quote(name, safe="", errors="surrogatepass").replace("~", "%7E")
    if quoted.startswith(".") or not quoted:
        quoted = "%2E" + quoted[1:] if quoted else "%"
    if len(quoted) <= _LONGEST_NAME:
        return quoted
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{quoted[: _LONGEST_NAME - 20]}~{digest}"
