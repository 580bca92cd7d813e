"""Files that hold what does not fit in memory while a step works, and go with it."""

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

_HEAD = Struct("<QI")  # length in bytes and CRC-32 of what follows
_QUICK = 1  # zlib's fastest level: the file is read once and thrown away


class _Temporary:
    """A file under a name that opening a run directory removes, should the process be killed before `close`."""

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


class Spill(_Temporary):
    """Pieces of bytes, compressed, read back in the order in which they were added.

    Args:
        folder: Where the file goes; made where it is not there.
        name: Of the file, for messages.
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
        """Yield the pieces. Nothing may be added before the last was read.

        Raises:
            DataError: What was written is not there any more.
        """
        with disk_errors(self.path, "reading it"):
            self._file.seek(0)
            while self._file.tell() < self._size:
                head = self._file.read(_HEAD.size)
                length, crc = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
                packed = self._file.read(length)
                if not length or zlib.crc32(packed) != crc:
                    raise DataError(
                        f"{self.path}: what was written to it is not what is read: another process changed it, or the "
                        "disk is failing. Give the same command again with this run_dir."
                    )
                yield zlib.decompress(packed)


class Texts(_Temporary):
    """Short texts on disk, each read back by its number; eight bytes of memory a text.

    Args:
        folder: Where the file goes; made where it is not there.
        name: Of the file, for messages.
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
