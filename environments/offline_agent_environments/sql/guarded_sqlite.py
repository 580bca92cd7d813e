"""Guarded SQLite connections: statements that a policy wrote can read, where allowed change rows, and nothing else.

An authorizer refuses every other action (ATTACH, PRAGMA, DDL, extensions, files, chance); limits bound instructions,
time, rows, the size of a value and memory.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

Row = tuple[Any, ...]

_READING = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, getattr(sqlite3, "SQLITE_RECURSIVE", 33)}
)
_WRITING = _READING | {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}
_HARMLESS_PRAGMAS = frozenset(
    {"table_info", "table_xinfo", "table_list", "foreign_key_list", "index_list", "index_info"}
)
_FORBIDDEN = frozenset(
    {
        "load_extension", "readfile", "writefile", "edit", "fts3_tokenizer",
        "random", "randomblob", "current_time", "current_date", "current_timestamp",  # the same query, the same rows
    }
)  # fmt: skip
_OF_THE_HOST = frozenset(  # no guarded statement can cause them, so that nobody can choose to have no score
    {
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
    }
)  # fmt: skip
_TICK = 100  # instructions between two looks at the limits; one instruction can work on two values of the largest size


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one statement.

    Attributes:
        rows: Most rows of its result.
        value: Most bytes of any text or blob it reads or makes.
        instructions: Most instructions of SQLite's virtual machine: the same on every machine, unlike seconds.
        seconds: Processor time of the thread, for what instructions do not bound.
        memory: Bytes that SQLite may hold in the whole process; sorting and temporary tables are kept in memory.
        columns: Most columns of its result.
        size: Bytes of the result's values in Python, which `memory` does not count.
    """

    rows: int = 10_000
    value: int = 100_000
    instructions: int = 20_000_000
    seconds: float = 10.0
    memory: int = 512 * 2**20
    columns: int = 200
    size: int = 64 * 2**20


class LimitExceeded(Exception):
    """A statement ran past one of its limits.

    Attributes:
        timed: It was the time or the memory: another run may end otherwise.
    """

    def __init__(self, message: str, timed: bool = False) -> None:
        super().__init__(message)
        self.timed = timed


class HostFault(Exception):
    """A database could not be opened or read, for a reason that is in no statement; it tells nothing of one."""


@contextmanager
def opening() -> Iterator[None]:
    """Turn errors of SQLite in the block, in which nobody's statement runs, into HostFault."""
    try:
        yield
    except sqlite3.Error as error:
        raise _host_fault(error) from error


def _host_fault(error: sqlite3.Error) -> HostFault:
    return HostFault(f"the database cannot be read: {error} ({getattr(error, 'sqlite_errorname', 'no code')})")


def guard(connection: sqlite3.Connection, limits: Limits, writing: bool = False) -> sqlite3.Connection:
    """Restrict a connection, for good, to statements that read, or that change rows; return it.

    Args:
        connection: An open connection; what is to be set up on it has to be done before.
        limits: Its limits of size and memory; `run` watches the others.
        writing: Whether INSERT, UPDATE and DELETE are allowed.
    """
    connection.text_factory = _decoded
    connection.execute("pragma temp_store = memory")
    connection.execute(f"pragma hard_heap_limit = {limits.memory}")  # of the process; it can only be lowered
    connection.execute("pragma trusted_schema = off")
    if not writing:
        connection.execute("pragma query_only = on")
    for limit, value in (
        (sqlite3.SQLITE_LIMIT_LENGTH, limits.value),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, min(limits.value, 20_000)),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
        (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
        (sqlite3.SQLITE_LIMIT_VDBE_OP, 100_000),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200),
        (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 20),
        (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        connection.setlimit(limit, value)
    connection.set_authorizer(_authorise_writing if writing else _authorise_reading)
    return connection


def run(
    connection: sqlite3.Connection, statement: str, limits: Limits, first: int | None = None
) -> tuple[tuple[str, ...], list[Row], bool]:
    """Execute one statement on a guarded connection.

    Args:
        connection: As `guard` returns it.
        statement: One statement.
        limits: Its limits.
        first: Only this many rows are taken, and more are no error; None = all, at most `limits.rows`.

    Returns:
        Names of the columns (none for a statement without a result), rows, and whether there were more of them.

    Raises:
        LimitExceeded: It ran past a limit.
        HostFault: The database could not be read.
        sqlite3.Error, sqlite3.Warning, ValueError: SQLite refused it.
    """
    left, end = limits.instructions // _TICK, time.thread_time() + limits.seconds
    late = False

    def watch() -> int:
        nonlocal left, late
        left -= 1
        late = left % 32 == 0 and time.thread_time() > end
        return int(left < 0 or late)

    connection.set_progress_handler(watch, _TICK)
    most = limits.rows if first is None else first
    try:
        cursor = connection.execute(statement)
        if cursor.description is not None and len(cursor.description) > limits.columns:
            raise LimitExceeded(f"gave more than {limits.columns} columns")
        rows: list[Row] = []
        held = 0
        for row in cursor:
            rows.append(row)
            held += sum(map(getsizeof, row))
            if held > limits.size:
                raise LimitExceeded(f"gave more than {limits.size >> 20} MiB")
            if len(rows) > most:
                break
        cursor.close()
    except MemoryError as error:
        raise LimitExceeded(f"needed more than {limits.memory >> 20} MiB of memory", timed=True) from error
    except sqlite3.DataError as error:  # a text or blob that is too big
        raise LimitExceeded(f"read or made a value of more than {limits.value:,} bytes") from error
    except sqlite3.Error as error:
        if late:
            raise LimitExceeded(f"ran longer than {limits.seconds:g} s", timed=True) from error
        if left < 0:
            raise LimitExceeded(f"needed more than {limits.instructions:,} instructions") from error
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _OF_THE_HOST:
            raise _host_fault(error) from error
        raise
    finally:
        connection.set_progress_handler(None, 0)
    more = len(rows) > most
    if more and first is None:
        raise LimitExceeded(f"gave more than {limits.rows} rows")
    names = tuple(str(column[0]) for column in cursor.description or ())
    return names, rows[:most], more


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _authorise_reading(action: int, first: str | None, second: str | None, *rest: object) -> int:
    return _authorise(_READING, action, first, second)


def _authorise_writing(action: int, first: str | None, second: str | None, *rest: object) -> int:
    if action in _WRITING - _READING and (first or "").lower().startswith("sqlite_"):
        return sqlite3.SQLITE_DENY
    return _authorise(_WRITING, action, first, second)


def _authorise(allowed: frozenset[int], action: int, first: str | None, second: str | None) -> int:
    if action == sqlite3.SQLITE_PRAGMA:
        return sqlite3.SQLITE_OK if (first or "").lower() in _HARMLESS_PRAGMAS else sqlite3.SQLITE_DENY
    if action not in allowed or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
