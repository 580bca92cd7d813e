"""Result rows for SQL: both queries run against a SQLite file that neither can change."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from offline_agent.judges.verifiers import Unscorable, rows, verifier
from offline_agent_environments.sql.guarded_sqlite import HostFault, LimitExceeded, Limits, Row, guard, opening, run

Ran = tuple[tuple[str, ...], list[Row], bool]
ERRORS = (sqlite3.Error, sqlite3.Warning, ValueError)


@verifier("3")
def sql(
    query: str,
    gold: str,
    database: str | Path,
    ordered: bool | None = None,
    seconds: float = 10.0,
    max_rows: int = 100_000,
) -> tuple[float, bool, dict[str, Any]]:
    """Judge a query by the rows it gives against those of the right query.

    A query that does not run, tries anything but reading, or runs out of its limits is wrong. There is no score where
    the right query does not run, before it or after one that ran out of time or memory.

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
    limits = Limits(rows=max_rows, value=250_000, instructions=2**31, seconds=seconds)
    try:
        _, wanted, _ = _run(path, limits, gold)
    except (*ERRORS, LimitExceeded, HostFault) as error:
        raise Unscorable(f"the right query does not run: {error}") from error
    in_order = ordering(gold) if ordered is None else ordered
    score, success, found = compared(partial(_run, path, limits), query, gold, wanted, in_order)
    return score, success, {"query": query, "ordered": in_order, **found}


def compared(
    run: Callable[[str], Ran], query: str, gold: str, wanted: Sequence[Row], ordered: bool
) -> tuple[float, bool, dict[str, Any]]:
    """Return score, success and evidence of a query by the rows of the right one.

    Args:
        run: Runs a query; see `guarded_sqlite.run`.
        query, gold: The query, and the right one.
        wanted: The rows of the right one.
        ordered: Whether their order counts.

    Raises:
        Unscorable: The database cannot be read, or the right query does not run after one that ran out of time.
    """
    try:
        _, found, _ = run(query)
    except LimitExceeded as error:
        if error.timed:
            try:
                run(gold)  # else a busy machine may be the cause
            except (*ERRORS, LimitExceeded, HostFault) as other:
                raise Unscorable(f"the query {error}, and then the right one: {other}") from error
        return 0.0, False, {"error": f"the query {error}"}
    except HostFault as error:
        raise Unscorable(str(error)) from error
    except ERRORS as error:
        return 0.0, False, {"error": str(error)}
    verdict = rows(found, wanted, ordered=ordered)
    if verdict.score is None:
        raise Unscorable(verdict.error or "the rows could not be compared")
    return verdict.score, bool(verdict.success), dict(verdict.evidence)


def ordering(gold: str) -> bool:
    """Return whether a right query asks for an order."""
    return "order by" in " ".join(gold.casefold().split())


def _run(path: Path, limits: Limits, query: str) -> Ran:
    with opening():
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=limits.seconds)
    try:
        with opening():
            guard(connection, limits)
        return run(connection, query, limits)
    finally:
        connection.close()
