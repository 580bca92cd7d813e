"""Run directories: manifest, event logs, trees, tables, quarantine and summary; atomic, locked, resumable."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from offline_agent import pictures
from offline_agent.errors import ConfigError, DataError
from offline_agent.outgoing import masked
from offline_agent.records import SCHEMA_VERSION
from offline_agent.store.columns import table_schema, widened
from offline_agent.store.events import EventLog
from offline_agent.store.files import safe_name, write_atomic, write_json, write_pictures
from offline_agent.store.lock import LOCK, acquire, release
from offline_agent.store.manifest import ANEW, MANIFEST, Growth, begin, now, resume
from offline_agent.store.provenance import code_hash
from offline_agent.store.tables import write_table

if TYPE_CHECKING:
    import pyarrow as pa

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
        """Write an entry, unless it exists already; return whether it is new.

        Args:
            kind: Kind of the refused item: `task`, `branch`, `pair`, `trajectory` …
            name: Its name; the same item has the same name in every run.
            reason: One readable sentence.
            facts: JSON-serialisable details.

        Raises:
            DataError: The disk refused, or an existing line is broken or of another schema version.
        """
        with self._lock:
            if self._seen is None:
                self._seen = {hash((row["kind"], row["name"], row["reason"])) for row in self.read()}
            reason = masked(reason)
            if (key := hash((kind, name, reason))) in self._seen:
                return False
            self._log.append({"schema_version": SCHEMA_VERSION, "kind": kind, "name": name, "reason": reason, **facts})
            self._seen.add(key)
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


class RunDirectory:
    """One run on disk. Make it with `open`; use it as a context manager, or call `close`.

    Attributes:
        path: The directory.
        resumed: Whether the run existed before.
        manifest: Content of manifest.json.
        warnings: Notes for the user about this resume; empty for a new run.
        quarantined: The quarantine file.
    """

    def __init__(self, path: Path, lock: int, manifest: dict[str, Any], resumed: bool, warnings: list[str]) -> None:
        self.path = path
        self.resumed = resumed
        self.manifest = manifest
        self.warnings: tuple[str, ...] = tuple(warnings)
        self._lock: int | None = lock
        self._logs: dict[str, EventLog] = {}
        self.quarantined = Quarantine(path / "quarantine.jsonl")

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        config: Mapping[str, Any],
        facts: Mapping[str, Any],
        command: str,
        free: Iterable[str] = (),
        growth: Growth | None = None,
    ) -> RunDirectory:
        """Create a run directory, or resume one of the same configuration; locked until `close`.

        Args:
            path: The directory; created with its parents.
            config: The resolved configuration, JSON-serialisable.
            facts: Further entries of the manifest: `seeds`, `hashes` (of model, tokenizer, chat_template, task_set, …),
                `batch_invariant` … A resume with a different hash is refused, and so is a resume with another model
                behind a server, compared by `served`: {label: {`model`, `logps`, `tolerance`}}.
            command: The pipeline's name.
            free: Dotted keys (or whole sections) that may differ on resume, because results do not depend on them.
            growth: Keys of which a resume may ask for more; None = none.

        Raises:
            ConfigError: Another process has it open; it is no run directory; or configuration or hashes differ.
                Nothing was written.
            DataError: The manifest or a log is missing, broken or of another schema version. Nothing was changed.
        """
        path = Path(path)
        known = _look(path)
        lock = acquire(path)
        pictures.look_in(path / pictures.FOLDER)
        try:
            facts = {"seeds": {}, **facts, "hashes": {"code": code_hash(), **facts.get("hashes", {})}}
            warnings: list[str] = []
            if known or (path / MANIFEST).exists():
                manifest = resume(path, dict(config), facts, command, tuple(free), growth or Growth(), warnings)
            else:
                manifest = begin(dict(config), facts, command)
            run = cls(path, lock, manifest, "resumed" in manifest, warnings)
            _clear(path)
            run.note()
            return run
        except BaseException:
            release(path, lock, fresh=not known)
            raise

    def events(self, shard: str = "0000") -> EventLog:
        """Return the log of a shard, always the same object; the manifest lists it, so that its loss is detected."""
        log = self._logs.get(shard)
        if log is None:
            name = f"{safe_name(shard)}.jsonl"
            if name not in self.manifest["logs"]:
                EventLog(self.path / "events" / name).create()
                self.manifest["logs"].append(name)
                self.note()
            log = EventLog(self.path / "events" / name)
            self._logs[shard] = log
        return log

    def write_tree(self, tree_id: str, data: Mapping[str, Any]) -> Path:
        """Write one tree as compressed JSON; the same data gives the same bytes. Raises as `write_atomic`.

        Args:
            tree_id: Its id, any text.
            data: networkx node-link data, JSON-serialisable; `schema_version` and `tree_id` are written first.
        """
        body = {"schema_version": SCHEMA_VERSION, "tree_id": tree_id, **data}
        text = json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")
        write_pictures(text, self.path)
        return write_atomic(tree_path(self.path, tree_id), gzip.compress(text, compresslevel=6, mtime=0))

    def written(self, tree_ids: Iterable[str]) -> set[str]:
        """Return those of these trees that are stored; no file is opened."""
        there = set(os.listdir(self.path / "trees")) if (self.path / "trees").is_dir() else set()
        return {tree_id for tree_id in tree_ids if tree_path(self.path, tree_id).name in there}

    def quarantine(self, kind: str, name: str, reason: str, **facts: Any) -> bool:
        """Record a refused item and the reason, once even if the run is resumed. See `Quarantine.add`."""
        return self.quarantined.add(kind, name, reason, **facts)

    def write_rows(
        self, table: str, rows: Iterable[Mapping[str, Any]], schema: pa.Schema | None = None, shard: str = "0000"
    ) -> Path:
        """Write `<table>/<shard>.parquet` as a stream, atomically; an older file is replaced. See `write_table`.

        Args:
            table: Its name.
            rows: Its rows, by known names.
            schema: None = that of `store.columns.table_schema`.
            shard: Name of the file.
        """
        file = self.path / table / f"{safe_name(shard)}.parquet"
        schema = table_schema(table) if schema is None else schema
        if pictures.waiting() or (self.path / pictures.FOLDER).is_dir():
            schema, rows = widened(schema), map(partial(_keep_pictures, self.path), rows)
        return write_table(file, table, rows, schema)

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        """Write summary.json."""
        return write_json(self.path / "summary.json", {"schema_version": SCHEMA_VERSION, **summary})

    def note(self, **facts: Any) -> None:
        """Write the manifest, with further facts."""
        self.manifest.update(facts)
        write_json(self.path / MANIFEST, self.manifest)

    def finish(self, status: str = "done", **facts: Any) -> None:
        """Write status and end of the run, and further facts, to the manifest."""
        self.note(**facts, status=status, ended=now())

    def close(self) -> None:
        """Make everything durable and release the lock."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            for log in self._logs.values():
                log.close()
            self.quarantined.close()
        finally:
            os.close(lock)

    def __enter__(self) -> RunDirectory:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Close; an exception is written to the manifest first."""
        if error is not None and self._lock is not None:
            with contextlib.suppress(DataError):
                self.finish("failed", error=f"{type(error).__name__}: {error}")
        self.close()


def _keep_pictures(run: Path, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write the pictures that a row's messages name, and return the row."""
    lists = [value for value in row.values() if isinstance(value, list) and value and isinstance(value[0], dict | str)]
    write_pictures(json.dumps(lists, default=str).encode(), run)
    return row


def tree_path(run_dir: Path, tree_id: str) -> Path:
    """Return the path of a tree in a run directory."""
    return run_dir / "trees" / f"{safe_name(tree_id)}.json.gz"


def read_tree(path: Path) -> dict[str, Any]:
    """Return the tree in a file of `trees/`.

    Raises:
        DataError: It is missing, incomplete, altered or of another schema version; names the file and the remedy.
    """
    data = _load_tree(path)
    del data["schema_version"], data["tree_id"]
    return data


def _load_tree(path: Path) -> dict[str, Any]:
    mend = "Remove it and give the same command again with this run_dir: it is made anew from the event log."
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
        version = data["schema_version"]
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing. Give the same command again with this run_dir.") from error
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise DataError(f"{path}: not readable as a compressed tree ({error}). {mend}") from error
    if version != SCHEMA_VERSION:
        raise DataError(f"{path}: schema version {version!r}, this program reads {SCHEMA_VERSION}. {ANEW}")
    return dict(data)


def trees_in_quarantine(run_dir: Path) -> set[str]:
    """Return the ids of a run's trees that are in quarantine: a tree's file does not tell what was found later."""
    return {str(row["name"]) for row in Quarantine(run_dir / "quarantine.jsonl").read() if row["kind"] == "tree"}


def tree_id_of(file: Path) -> str:
    """Return the id of the tree in a file of `trees/`; the file is read where its name was cut."""
    name = file.name.removesuffix(".json.gz")
    return str(_load_tree(file)["tree_id"]) if "~" in name else unquote(name, errors="surrogatepass")


def _look(path: Path) -> bool:
    """Return whether `path` holds a run. Raises where it is neither a run, nor empty, nor absent."""
    if not path.exists():
        return False
    if not path.is_dir():
        raise ConfigError(f"run_dir: {path} is a file, not a directory. Name another.")
    if (path / MANIFEST).exists():
        return True
    content = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if not content:
        return False
    if "events" in content or "trees" in content:
        raise DataError(f"{path / MANIFEST}: missing, though the directory holds a run. {ANEW}")
    raise ConfigError(
        f"run_dir: {path} is not empty and is no run directory (it holds {content[0]!r}). "
        "Name another; nothing was written."
    )


def _clear(path: Path) -> None:
    """Remove temporary files of killed writers; the lock is held, so no other process writes here."""
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not os.path.exists(os.path.join(folder, name, LOCK))]  # others' runs
        for name in names:
            if name.startswith(".") and name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(folder, name))
