"""Quarantine file of a run: refused items with their reasons, each entry once, one JSON object and checksum a line."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError
from offline_agent.outgoing import masked
from offline_agent.records import SCHEMA_VERSION
from offline_agent.store.events import EventLog

_MEND = "Restore the file from a copy, or move it away: items that are refused again are listed again."


class Quarantine:
    """The file `quarantine.jsonl`, a log without a header. Thread-safe; (kind, name, reason) identifies an entry.

    Memory holds a 64-bit hash of each entry: with a million entries, the chance of a collision is one in 40 million.

    Args:
        path: The file; read when the first entry is added (an incomplete last line is dropped).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = EventLog(path, _MEND)
        self._lock = threading.Lock()
        self._seen: set[int] | None = None  # None = the file was not read yet

    def add(self, kind: str, name: str, reason: str, **facts: Any) -> bool:
        """Write an entry, unless it exists already.

        Args:
            kind: Kind of the refused item: `task`, `branch`, `pair`, `trajectory` …
            name: Its name; the same item has the same name in every run.
            reason: One readable sentence.
            facts: JSON-serialisable details.

        Returns:
            Whether it is new.

        Raises:
            DataError: The disk refused, or an existing line is broken or of another schema version.
        """
        with self._lock:
            reason = masked(reason)
            seen, key = self._load(), _key(kind, name, reason)
            if key in seen:
                return False
            row = {"schema_version": SCHEMA_VERSION, "kind": kind, "name": name, "reason": reason, **facts}
            self._log.append(row)
            seen.add(key)
            return True

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the entries, oldest first; an incomplete last line is dropped.

        Raises:
            DataError: A line is broken or of another schema version; names file, line and the remedy.
        """
        for number, row in enumerate(self._log.read(), 1):
            if row.get("schema_version") != SCHEMA_VERSION or not {"kind", "name", "reason"} <= row.keys():
                raise DataError(
                    f"{self.path}, line {number}: broken, or not of schema version {SCHEMA_VERSION}. {_MEND}"
                )
            yield row

    def close(self) -> None:
        """Make the file durable and close it."""
        self._log.close()

    def _load(self) -> set[int]:
        if self._seen is None:
            self._seen = {_key(row["kind"], row["name"], row["reason"]) for row in self.read()}
        return self._seen


def _key(kind: str, name: str, reason: str) -> int:
    text = json.dumps([kind, name, reason]).encode("ascii")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
