"""Databases of the SQL environment: opened read-only, described, copied with other contents, copied to be written."""

from __future__ import annotations

import os
import random
import re
import sqlite3
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent_environments.sql.guarded_sqlite import LimitExceeded, Limits, Row, guard, opening, run
from offline_agent_environments.sql.schema import Schema, quoted, read_schema

LIMITS = Limits()
CHANGED_COPIES = 5
"""Copies with other contents that are tried, to find one on which the right query gives other rows."""

_OPEN_PER_THREAD = 64
_IN_MEMORY = 4 * 2**20  # bytes; a larger changed copy is a temporary file
_GROWTH = 2 * 2**20  # bytes of a written copy; read into Python, small rows take thirty times as much
_SHUFFLED = 20_000  # rows; larger tables lose rows and are not shuffled

_local = threading.local()


@dataclass(frozen=True, eq=False)
class Database:
    """One database, shared by all episodes that read it.

    Attributes:
        name: Unique; tells connections apart.
        image: Its bytes; None where it is a file.
        path: The file; None where it is bytes.
    """

    name: str
    image: bytes | None
    path: Path | None

    def run(self, statement: str, first: int | None = None) -> tuple[tuple[str, ...], list[Row], bool]:
        """Execute one reading statement; see `guarded_sqlite.run`."""
        return run(self._connection(), statement, LIMITS, first)

    @cached_property
    def schema(self) -> Schema:
        """Tables, columns, keys and numbers of rows."""
        raw = self._open()
        try:
            return read_schema(raw)
        finally:
            raw.close()

    @lru_cache(maxsize=4096)  # noqa: B019  (databases are cached for the process's life, too)
    def rows(self, statement: str) -> tuple[Row, ...]:
        """Return the rows of a right query, kept; raises as `run`."""
        return tuple(self.run(statement)[1])

    def changed(self, seed: int) -> Database:
        """Return a copy with the same schema whose tables have fewer rows and their values in other rows."""
        return _changed(self, seed)

    def private(self) -> sqlite3.Connection:
        """Return a guarded connection to a copy in memory that may be written, for any thread."""
        own = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        raw = self._open()
        try:
            raw.backup(own)
        finally:
            raw.close()
        return guarded_copy(own, self.most_pages)

    @cached_property
    def most_pages(self) -> int:
        """Pages to which a written copy may grow; a copy of a copy may not grow further."""
        raw = self._open()
        try:
            pages, size = (raw.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "page_size"))
        finally:
            raw.close()
        return int(pages + _GROWTH // size)

    def _open(self) -> sqlite3.Connection:
        if self.path is not None:
            uri = f"{self.path.resolve().as_uri()}?mode=ro"
            return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=LIMITS.seconds)
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.deserialize(self.image)  # type: ignore[arg-type]  # one of the two is set
        return connection

    def _connection(self) -> sqlite3.Connection:
        """Return this thread's guarded connection."""
        if getattr(_local, "process", None) != os.getpid():  # a connection does not outlive a fork
            _local.process, _local.connections = os.getpid(), OrderedDict()
        connections: OrderedDict[str, sqlite3.Connection] = _local.connections
        found = connections.pop(self.name, None)
        if found is None:
            with opening():
                found = guard(self._open(), LIMITS)
            if len(connections) >= _OPEN_PER_THREAD:
                connections.popitem(last=False)[1].close()
        connections[self.name] = found
        return found


def guarded_copy(connection: sqlite3.Connection, pages: int) -> sqlite3.Connection:
    """Restrict a private copy in memory to statements that read or change rows, and to so many pages; return it."""
    connection.execute(f"pragma max_page_count = {pages}")
    return guard(connection, LIMITS, writing=True)


def contents(connection: sqlite3.Connection, schema: Schema) -> dict[str, list[list[Any]]]:
    """Return table → its rows, in an order that does not depend on how they came there."""
    found = {}
    for table in schema.tables:
        rows = connection.execute(f"select * from {quoted(table.name)}").fetchall()
        found[table.name] = sorted((list(row) for row in rows), key=repr)
    return found


@lru_cache(maxsize=512)
def file_database(path: Path) -> Database:
    """Return the database of a SQLite file, or of a script (.sql) that makes one.

    Raises:
        ConfigError: There is no such file, or it is no SQLite database that can be read.
    """
    if not path.is_file():
        raise ConfigError(f"env.database: there is no file {str(path)!r}")
    if path.suffix == ".sql":
        return _of_script(path)
    with path.open("rb") as file:
        head = file.read(16)
    if head != b"SQLite format 3\0":
        raise ConfigError(
            f"env.database: {str(path)!r} is no SQLite database (it begins with {head[:16]!r}); allowed: a SQLite 3 "
            "file, or a folder in Spider's format (tables.json, dev.json, database/)"
        )
    database = Database(str(path.resolve()), None, path)
    try:
        tables = database.schema.tables
    except sqlite3.Error as error:
        raise ConfigError(f"env.database: {str(path)!r} cannot be read: {error}") from error
    if not tables:
        raise ConfigError(f"env.database: {str(path)!r} has no tables")
    return database


def _of_script(path: Path) -> Database:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.executescript(path.read_text(encoding="utf-8"))
        return Database(str(path.resolve()), connection.serialize(), None)
    except (sqlite3.Error, ValueError) as error:
        raise ConfigError(f"env.database: the script {str(path)!r} does not run: {error}") from error
    finally:
        connection.close()


def discriminating(database: Database, gold: str) -> Database | None:
    """Return a changed copy on which the right query gives other rows, and some; None where there is none.

    Raises:
        LimitExceeded, sqlite3.Error: The right query does not run.
    """
    return _discriminating(database, gold)


@lru_cache(maxsize=8192)
def _discriminating(database: Database, gold: str) -> Database | None:
    here = sorted(map(repr, database.rows(gold)))
    empty = None
    for seed in range(CHANGED_COPIES):
        other = database.changed(seed)
        try:
            there = sorted(map(repr, other.rows(gold)))
        except (sqlite3.Error, LimitExceeded):
            continue
        if there != here:
            if there:
                return other
            empty = empty or other
    return empty


@lru_cache(maxsize=512)
def _changed(database: Database, seed: int) -> Database:
    raw = database._open()
    size = raw.execute("pragma page_count").fetchone()[0] * raw.execute("pragma page_size").fetchone()[0]
    name, path = f"{database.name} changed {seed}", None
    if size > _IN_MEMORY:
        handle, text = tempfile.mkstemp(prefix="changed-", suffix=".sqlite", dir=_folder())
        os.close(handle)
        path = Path(text)
    copy = sqlite3.connect(path or ":memory:", isolation_level=None)
    try:
        raw.backup(copy)
        _change(copy, database.schema, seed)
        return Database(name, None if path else copy.serialize(), path)
    finally:
        raw.close()
        copy.close()


@lru_cache(maxsize=1)
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="changed-databases-")  # removed when the process ends


def _folder() -> str:
    return _temporary().name


def _change(connection: sqlite3.Connection, schema: Schema, seed: int) -> None:
    """Delete about a fifth of the rows of each table and exchange the values of columns between its rows.

    Keys and columns with unique values stay in their rows, so that references hold; values come from the table itself,
    so that constants that a question names still occur.
    """
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    for row in connection.execute("select name from sqlite_master where type = 'trigger'").fetchall():
        connection.execute(f"drop trigger {quoted(row[0])}")
    connection.execute("pragma foreign_keys = off")
    connection.execute("pragma ignore_check_constraints = on")
    connection.execute("begin")
    for table in schema.tables:
        _change_table(connection, schema, table.name, random.Random(f"{seed} {table.name}"))
    connection.execute("commit")


def _change_table(connection: sqlite3.Connection, schema: Schema, name: str, rng: random.Random) -> None:
    table, ident = schema[name], quoted(name)
    if not table.has_rowid:
        return
    if table.rows > _SHUFFLED:
        connection.execute(f"delete from {ident} where (rowid * 2654435761 + ?) % 5 = 0", (rng.randrange(1000),))
        return
    numbers = [row[0] for row in connection.execute(f"select rowid from {ident} order by rowid")]
    gone = set(rng.sample(numbers, len(numbers) // 5)) if len(numbers) >= 5 else set()
    connection.executemany(f"delete from {ident} where rowid = ?", [(number,) for number in sorted(gone)])
    kept = [number for number in numbers if number not in gone]
    for column in table.columns:
        if column.name in table.fixed:
            continue
        field = quoted(column.name)
        values = [row[0] for row in connection.execute(f"select {field} from {ident} order by rowid")]
        rng.shuffle(values)
        connection.executemany(f"update {ident} set {field} = ? where rowid = ?", list(zip(values, kept, strict=True)))


def shown(columns: tuple[str, ...], rows: list[Row], more: bool, cell: int = 120) -> str:
    """Return result rows as text: a line of names, a line for each row, cells cut to `cell` characters."""
    lines = [" | ".join(columns)]
    lines += [" | ".join(_cell(value, cell) for value in row) for row in rows]
    count = len(rows)
    lines.append(f"(the first {count} rows; there are more)" if more else f"({count} row{'' if count == 1 else 's'})")
    return "\n".join(lines)


def _cell(value: Any, limit: int) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    text = re.sub(r"\s+", " ", str(value))
    return text if len(text) <= limit else f"{text[:limit]}…"
