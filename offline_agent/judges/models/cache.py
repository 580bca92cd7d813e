"""The cache of what judges' models answered, by content: in memory, and in a file of the run."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError


class AnswerCache:
    """Answers by the content of their questions; safe to use from several threads.

    Args:
        file: A file of answers, one JSON object a line; None = in memory, until `keep_in`.

    Raises:
        ConfigError: The file cannot be used.
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
                with open(self._file, "a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "answer": answer}, ensure_ascii=True) + "\n")

    def _open(self, path: Path) -> None:
        self._file = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"judge.cache: {path} cannot be used: {error}") from error
        for line in lines:
            try:
                entry = json.loads(line)
                self._known[entry["key"]] = entry["answer"]
            except (ValueError, KeyError, TypeError):  # the last line of a run that was killed
                continue


def _key(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
