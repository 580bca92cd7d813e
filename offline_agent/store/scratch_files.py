"""Scratch files: temporary data that does not fit in memory, removed when the step that uses them ends."""

from __future__ import annotations

import contextlib
import os
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from offline_agent.errors import DataError
from offline_agent.store.files import disk_errors

_QUICK = 1  # zlib's fastest level: the file is read once and removed


class PieceFile:
    """A file of compressed pieces of bytes, each read back by its number; it needs eight bytes of memory a piece.

    Its name ends in `.tmp`: opening the run directory removes it where the process was killed.

    Args:
        folder: The folder of the file; created where it is missing.
        name: Name of the file, for messages.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f".{name}.{os.getpid()}.tmp"
        self._ends = array("Q", [0])
        with disk_errors(self.path, "making it"):
            folder.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = open(self.path, "w+b")  # noqa: SIM115 - closed by `close`

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self._ends) - 1

    def add(self, piece: bytes) -> None:
        """Add a piece; the first is number 0. Raises DataError where the disk refused."""
        packed = zlib.compress(piece, _QUICK)
        with disk_errors(self.path, "writing to it"):
            self._file.write(packed)
        self._ends.append(self._ends[-1] + len(packed))

    def piece(self, number: int) -> bytes:
        """Return a piece. Raises DataError where the file is not as it was written."""
        start = self._ends[number]
        with disk_errors(self.path, "reading it"):
            self._file.flush()
            packed = os.pread(self._file.fileno(), self._ends[number + 1] - start, start)
        try:
            return zlib.decompress(packed)
        except zlib.error as error:
            raise DataError(
                f"{self.path}: its content is not what was written: another process changed it, or the disk is "
                "failing. Give the same command again with this run_dir."
            ) from error

    def read(self) -> Iterator[bytes]:
        """Yield the pieces in order. Raises as `piece`."""
        return map(self.piece, range(len(self)))

    def close(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


class TextFile(PieceFile):
    """The same for texts."""

    def add(self, text: str) -> None:  # type: ignore[override]  # a text in place of bytes
        """Add a text; see `PieceFile.add`."""
        super().add(text.encode("utf-8", "surrogatepass"))

    def __getitem__(self, number: int) -> str:
        """Return a text; see `PieceFile.piece`."""
        return self.piece(number).decode("utf-8", "surrogatepass")
