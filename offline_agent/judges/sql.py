"""Result rows for SQL: both queries run against a SQLite file that neither can change."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from offline_agent.judges.verifiers import Unscorable, rows, verifier

_READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    getattr(sqlite3, "SQLITE_RECURSIVE", 33),
}
_FORBIDDEN = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}


class _TooLong(Exception):
    """A query ran past its limit of time or rows."""


@verifier("1")
def sql(
    query: str,
    gold: str,
    database: str | Path,
    ordered: bool | None = None,
    seconds: float = 10.0,
    max_rows: int = 100_000,
) -> tuple[float, bool, dict[str, Any]]:
    """Judge a query by the rows it gives against those of the right query.

    A query that does not run, or tries anything but reading, is wrong; one that runs out of its limits has no score.

    Args:
        query: The query that was answered.
        gold: A right query.
        database: Path of a SQLite file; opened read-only.
        ordered: Whether the order counts; None = it does where the right query has an ORDER BY.
        seconds: Time limit of each query.
        max_rows: Most rows of each query.
    """
    path = Path(database)
    if not path.is_file():
        raise Unscorable(f"there is no database {str(path)!r}")
    try:
        wanted = _run(path, gold, seconds, max_rows)
    except (sqlite3.Error, _TooLong) as error:
        raise Unscorable(f"the right query does not run: {error}") from error
    try:
        got = _run(path, query, seconds, max_rows)
    except _TooLong as error:
        raise Unscorable(f"the query {error}") from error
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        return 0.0, False, {"query": query, "error": f"{type(error).__name__}: {error}"}
    in_order = "order by" in " ".join(gold.casefold().split()) if ordered is None else ordered
    verdict = rows(got, wanted, ordered=in_order)
    if verdict.score is None:
        raise Unscorable(verdict.error or "the rows could not be compared")
    return verdict.score, bool(verdict.success), {"query": query, "ordered": in_order, **verdict.evidence}


def _run(path: Path, query: str, seconds: float, max_rows: int) -> list[tuple[Any, ...]]:
    end = time.monotonic() + seconds
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=seconds)
    try:
        connection.set_authorizer(_authorise)
        connection.set_progress_handler(lambda: int(time.monotonic() > end), 1000)
        cursor = connection.execute(query)
        found = cursor.fetchmany(max_rows + 1)
    except sqlite3.OperationalError as error:
        if time.monotonic() > end:
            raise _TooLong(f"ran longer than {seconds:g} s") from error
        raise
    finally:
        connection.close()
    if len(found) > max_rows:
        raise _TooLong(f"gave more than {max_rows} rows")
    return found


def _authorise(action: int, first: str | None, second: str | None, *rest: object) -> int:
    if action not in _READING or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
