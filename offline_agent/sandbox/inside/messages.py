"""Messages: frames on a pipe or socket, and plain values as JSON, which alone pass between a program and its judge."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from typing import Any

LARGEST = 512 * 2**20  # bytes of a frame: four of length, then so many
_SMALL = 2**53
_DEEPEST = 100
_DEEPEST_JSON = 3 * _DEEPEST + 20  # a level of a dict is three of JSON
_NUMBERS = "biufc"  # kinds of numpy's types


def encode(value: Any, other: Callable[[Any], Any], depth: int = 0) -> Any:
    """Return a value as JSON data.

    Args:
        value: None, a bool, number, text, bytes, or a list, tuple, set or dict of such values; subclasses of these
            are taken for their base. numpy's arrays and scalars of numbers are plain too.
        other: Called with any other value; returns JSON data for it, or raises.
        depth: Levels that are around it.
    """
    if value is None or value is True or value is False:
        return value
    if depth > _DEEPEST:
        raise ValueError(f"a value of more than {_DEEPEST} levels")

    def inner(item: Any) -> Any:
        return encode(item, other, depth + 1)

    if isinstance(value, int):
        number = int(value)
        return number if -_SMALL < number < _SMALL else {"t": "i", "v": hex(number)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return {"t": "b", "v": bytes(value).hex()}
    if isinstance(value, complex):
        return {"t": "c", "v": [value.real, value.imag]}
    if isinstance(value, dict):
        return {"t": "d", "v": [[inner(key), inner(item)] for key, item in value.items()]}
    for kind, name in ((list, "l"), (tuple, "u"), (set, "s"), (frozenset, "f")):
        if isinstance(value, kind):
            return {"t": name, "v": [inner(item) for item in value]}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic) and value.dtype.kind in _NUMBERS:
        return {"t": "n", "v": [value.dtype.str, list(value.shape), value.tobytes().hex()]}
    return other(value)


def decode(data: Any, handle: Callable[[Any], Any]) -> Any:
    """Return the value of JSON data; raises ValueError where it is not `encode`'s.

    Args:
        data: JSON data.
        handle: Called with what `other` of `encode` gave.
    """
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if not isinstance(data, dict) or "t" not in data:
        raise ValueError("no plain value")
    kind = data["t"]
    value: Any = data.get("v")
    if kind == "i":
        return int(value, 16)
    if kind == "b":
        return bytes.fromhex(value)
    if kind == "c":
        return complex(*value)
    if kind == "d":
        return {decode(key, handle): decode(item, handle) for key, item in value}
    if kind == "n":
        return _array(*value)
    for made, name in ((list, "l"), (tuple, "u"), (set, "s"), (frozenset, "f")):
        if kind == name:
            return made(decode(item, handle) for item in value)
    return handle(data)


def _array(name: str, shape: list[int], data: str) -> Any:
    import numpy

    dtype = numpy.dtype(name)
    if dtype.kind not in _NUMBERS:
        raise ValueError("no array of numbers")
    return numpy.frombuffer(bytes.fromhex(data), dtype).reshape(shape).copy()[()]  # a scalar where it has no axis


def too_deep(data: Any) -> bool:
    """Return whether JSON data has more levels than `encode` makes, so that Python's own JSON may fail on it."""
    level, levels = [data], 0
    while level:
        if (levels := levels + 1) > _DEEPEST_JSON:
            return True
        level = [
            item for one in level if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
        ]  # fmt: skip
    return False


def frame(data: bytes) -> bytes:
    """Return the bytes of one frame."""
    return struct.pack(">I", len(data)) + data


def write_frame(fd: int, data: bytes) -> None:
    """Write one frame; raises OSError where the other side is gone."""
    left = memoryview(frame(data))
    while left:
        left = left[os.write(fd, left) :]


def read_frame(fd: int) -> bytes | None:
    """Return the next frame; None where the other side is gone. Raises ValueError for a longer frame."""
    head = read_exactly(fd, 4)
    if head is None:
        return None
    (size,) = struct.unpack(">I", head)
    if size > LARGEST:
        raise ValueError(f"a frame of {size} bytes, allowed: {LARGEST}")
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
