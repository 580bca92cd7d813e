"""Frames on a pipe or socket: four bytes of length, then the bytes."""

from __future__ import annotations

import os
import struct

LARGEST = 512 * 2**20


def frame(data: bytes) -> bytes:
    """Return the bytes of one frame."""
    return struct.pack(">I", len(data)) + data


def write_frame(fd: int, data: bytes) -> None:
    """Write one frame; raises OSError where the other side is gone."""
    left = memoryview(frame(data))
    while left:
        left = left[os.write(fd, left) :]


def read_frame(fd: int, largest: int = LARGEST) -> bytes | None:
    """Return the next frame; None where the other side is gone. Raises ValueError for a longer frame."""
    head = read_exactly(fd, 4)
    if head is None:
        return None
    (size,) = struct.unpack(">I", head)
    if size > largest:
        raise ValueError(f"a frame of {size} bytes, allowed: {largest}")
    return read_exactly(fd, size)


def read_exactly(fd: int, size: int) -> bytes | None:
    """Return so many bytes; None where there are fewer."""
    parts: list[bytes] = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
