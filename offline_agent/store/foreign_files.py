"""Files that others wrote: only regular ones are opened, and what is unpacked from them is bounded."""

from __future__ import annotations

import errno
import gzip
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import IO

from offline_agent.errors import DataError

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
