"""Questions with their right queries, generated from patterns that fit a schema; constants are drawn from the rows."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator

from offline_agent.seeding import derive_seed
from offline_agent_environments.sql.database import Database, discriminating
from offline_agent_environments.sql.guarded_sqlite import LimitExceeded
from offline_agent_environments.sql.patterns import Question, candidates

_MOST_ROWS = 60  # of a right answer


def split_of(pattern: str) -> str:
    """Return the split to which all questions of a pattern belong."""
    lot = derive_seed(0, "sql pattern", pattern) % 8
    return "validation" if lot == 0 else "test" if lot == 1 else "train"


def generate(database: Database, split: str, seed: int, writes: bool = False, each: int = 2) -> Iterator[Question]:
    """Yield a database's questions of a split, at most `each` of a pattern, in an order drawn from `seed`.

    Every right query gives rows, and other rows on a changed copy, so that constants can be told from queries.
    """
    rng = random.Random(derive_seed(seed, "sql questions", database.name.rpartition("/")[2]))
    found: dict[str, list[Question]] = {}
    for _ in range(each):
        for question in candidates(database, rng, writes):
            if split_of(question.pattern) == split:
                found.setdefault(question.pattern, []).append(question)
    listed = [question for pattern in sorted(found) for question in dict.fromkeys(found[pattern])]
    rng.shuffle(listed)
    for question in listed:
        if question.writes or _tells(database, question.gold):
            yield question


def _tells(database: Database, gold: str) -> bool:
    try:
        rows = database.rows(gold)
        other = discriminating(database, gold)
        return 0 < len(rows) <= _MOST_ROWS and other is not None and bool(other.rows(gold))
    except (sqlite3.Error, LimitExceeded):
        return False
