"""The cache of what judges' models answered, by content: in memory, and in a file of the run."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any, BinaryIO

from offline_agent.errors import ConfigError
from offline_agent.store.foreign_files import read_text

_PART = 1 << 16  # bytes that are looked at for the beginning of the last line


class AnswerCache:
    """Answers by the content of their questions; safe to use from several threads, and its file from several processes.

    Args:
        file: A file of answers, one JSON object a line; None = in memory, until `keep_in`.

    Raises:
        ConfigError: The file cannot be used, or a line of it, other than one that a killed run began, cannot be read.
    """

    def __init__(self, file: str | None) -> None:
        self._fixed = file is not None
        self._file: Path | None = None
        self._known: dict[str, Any] = {}
        self._lock = threading.Lock()
        if file is not None:
            self._open(Path(file))

    def keep_in(self, folder: Path) -> None:
        """Keep the answers in a folder of the run, where the configuration names no file."""
        if not self._fixed and self._file is None:
            self._open(folder / "answers.jsonl")

    def get(self, content: Any) -> Any:
        """Return the answer to a question, a JSON value; None = not known."""
        with self._lock:
            return self._known.get(_key(content))

    def keep(self, content: Any, answer: Any) -> None:
        """Keep the answer to a question."""
        key = _key(content)
        with self._lock:
            self._known[key] = answer
            if self._file is not None:
                line = json.dumps({"key": key, "answer": answer}, ensure_ascii=True) + "\n"
                with open(self._file, "ab+") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    _mend_end(file)
                    file.write(line.encode())

    def _open(self, path: Path) -> None:
        self._file = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = read_text(path).split("\n") if path.exists() else []
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"judge.cache: {path} cannot be used: {error}") from error
        for number, line in enumerate(lines, 1):
            found = _read(line)
            if found is not None:
                self._known[found[0]] = found[1]
            elif line.strip() and number < len(lines):  # else it is the end of a run that was killed as it wrote
                raise ConfigError(f"judge.cache: {path}, line {number} cannot be read: got {line[:80]!r}, allowed: "
                                  '{"key": ..., "answer": ...}; delete that line, or the file')  # fmt: skip


def _read(line: str) -> tuple[str, Any] | None:
    """Return the key and the answer of a line; None where it is none."""
    try:
        entry = json.loads(line)
        return entry["key"], entry["answer"]
    except (ValueError, KeyError, TypeError):
        return None


def _mend_end(file: BinaryIO) -> None:
    """End the last line of a file where it is not ended, or take it out where it is the beginning of one alone."""
    size = at = file.seek(0, os.SEEK_END)
    last = b""
    while at and b"\n" not in last:
        at = max(0, at - _PART)
        file.seek(at)
        last = file.read(size - at)
    last = last.rpartition(b"\n")[2]
    if last and _read(last.decode("utf-8", "replace")) is not None:
        file.write(b"\n")
    elif last:
        file.truncate(size - len(last))


def _key(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
