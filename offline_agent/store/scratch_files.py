"""Scratch files: temporary data that does not fit in memory, removed when the step that uses them ends."""

from __future__ import annotations

import contextlib
import os
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import BinaryIO

from offline_agent.errors import DataError
from offline_agent.store.files import disk_errors

_HEAD = Struct("<QI")  # length in bytes and CRC-32 of the compressed piece that follows
_QUICK = 1  # zlib's fastest level: the file is read once and removed


class _ScratchFile:
    """A file whose name ends in `.tmp`: opening the run directory removes it where the process was killed."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f".{name}.{os.getpid()}.tmp"
        with disk_errors(self.path, "making it"):
            folder.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = open(self.path, "w+b")  # noqa: SIM115 - closed by `close`

    def close(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


class PieceFile(_ScratchFile):
    """A file of compressed pieces of bytes, read back in the order in which they were added.

    Args:
        folder: The folder of the file; created where it is missing.
        name: Name of the file, for messages.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        self._size = 0

    def add(self, piece: bytes) -> None:
        """Add a piece.

        Raises:
            DataError: The disk refused.
        """
        packed = zlib.compress(piece, _QUICK)
        with disk_errors(self.path, "writing to it"):
            self._file.write(_HEAD.pack(len(packed), zlib.crc32(packed)))
            self._file.write(packed)
        self._size += _HEAD.size + len(packed)

    def read(self) -> Iterator[bytes]:
        """Yield the pieces. No piece may be added before the last one is read.

        Raises:
            DataError: The file is not as it was written.
        """
        with disk_errors(self.path, "reading it"):
            self._file.seek(0)
            while self._file.tell() < self._size:
                head = self._file.read(_HEAD.size)
                length, crc = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
                packed = self._file.read(length)
                if not length or zlib.crc32(packed) != crc:
                    raise DataError(
                        f"{self.path}: its content is not what was written: another process changed it, or the disk "
                        "is failing. Give the same command again with this run_dir."
                    )
                yield zlib.decompress(packed)


class TextFile(_ScratchFile):
    """A file of short texts, each read back by its number; it needs eight bytes of memory a text.

    Args:
        folder: The folder of the file; created where it is missing.
        name: Name of the file, for messages.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        self._ends = array("Q", [0])
        self._flushed = True

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._ends) - 1

    def add(self, text: str) -> None:
        """Add a text; the first is number 0.

        Raises:
            DataError: The disk refused.
        """
        data = text.encode("utf-8", "surrogatepass")
        with disk_errors(self.path, "writing to it"):
            self._file.write(data)
        self._ends.append(self._ends[-1] + len(data))
        self._flushed = False

    def __getitem__(self, number: int) -> str:
        """Return a text.

        Raises:
            DataError: The disk refused.
        """
        with disk_errors(self.path, "reading it"):
            if not self._flushed:
                self._file.flush()
                self._flushed = True
            start = self._ends[number]
            data = os.pread(self._file.fileno(), self._ends[number + 1] - start, start)
        return data.decode("utf-8", "surrogatepass")
