"""Tasks of the SQL environment: generated for a database, or read from a questions file or a folder of Spider."""

from __future__ import annotations

import itertools
import random
import re
import sqlite3
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from offline_agent.envs.task_files import tasks_of
from offline_agent.errors import ConfigError
from offline_agent.seeding import derive_seed
from offline_agent_environments.sql import worlds
from offline_agent_environments.sql.database import Database, discriminating, file_database
from offline_agent_environments.sql.guarded_sqlite import LimitExceeded
from offline_agent_environments.sql.judge import ordering
from offline_agent_environments.sql.patterns import Question, candidates
from offline_agent_environments.task_files import given_split, json_file

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


MOST = {"train": 2000, "validation": 200, "test": 200}
"""Generated tasks of a split."""

_TEXT, _GOLD = ("question", "text"), ("gold", "query", "sql", "SQL")
FORMATS = "question and gold, a right query; perhaps with db_id, ordered, split"
_SPIDER = {"train": ("train_spider.json", "train_others.json", "train.json"), "held out": ("dev.json", "test.json")}


def tasks(split: str, database: str | None, questions: str | None, writable: bool) -> Iterator[dict[str, Any]]:
    """Yield a split's tasks as `reset`'s arguments.

    Args:
        split: The split.
        database: None for the embedded ones, a SQLite file, or a folder in Spider's format.
        questions: A file with questions; None = generated ones, or those of the folder.
        writable: Whether tasks that change rows are generated, too.

    Raises:
        ConfigError: A path is wrong, or a file has another shape.
    """
    check(database, questions)
    if database is None:
        return itertools.islice(_generated(split, worlds.names(split), writable), MOST[split])
    if questions is not None or Path(database).is_dir():
        return _written(split, database, questions)
    return itertools.islice(_generated(split, [database], writable, each=6), MOST[split])


def check(database: str | None, questions: str | None) -> None:
    """Raise ConfigError where the paths lead nowhere, or to files of another shape."""
    if database is None and questions is not None:
        raise ConfigError("env.questions: is given without env.database, the SQLite file or folder that they are about")
    if database is None:
        return
    if questions is not None or Path(database).is_dir():
        rows = _rows(database, questions)
        for name in sorted({row["database"] for row in rows}):
            file_database(Path(name))
    else:
        file_database(Path(database))


def find(database: str) -> Database:
    """Return the database of a task; raises ConfigError where there is none."""
    if database.rpartition("-")[0] in worlds.NAMES and not Path(database).exists():
        return worlds.database(database)
    return file_database(Path(database))


def _generated(split: str, names: list[str], writable: bool, each: int = 2) -> Iterator[dict[str, Any]]:
    """Yield generated tasks, one of each database in turn."""
    turns = [(name, generate(find(name), split, seed, writable, each)) for seed, name in enumerate(names)]
    numbers = {name: 0 for name in names}
    while turns:
        for name, questions in list(turns):
            question = next(questions, None)
            if question is None:
                turns.remove((name, questions))
                continue
            numbers[name] += 1
            yield {
                "task_id": f"{Path(name).stem}-{split}-{numbers[name]}",
                "database": name,
                "question": question.text,
                "gold": question.gold,
                "ordered": question.ordered,
            }


def _written(split: str, database: str, questions: str | None) -> Iterator[dict[str, Any]]:
    for row in _rows(database, questions):
        if row["split"] == split:
            yield {name: value for name, value in row.items() if name != "split"}


@lru_cache(maxsize=16)
def _rows(database: str, questions: str | None) -> tuple[dict[str, Any], ...]:
    path = Path(database)
    if path.is_dir():
        return tuple(_spider(path, questions))
    file_database(path)
    assert questions is not None  # `tasks` and `check` ask only then
    return tuple(_rows_of(Path(questions), "env.questions", lambda _: path, None))


def _spider(folder: Path, questions: str | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a folder in Spider's format (Yu et al. 2018): dev.json, tables.json, database/ID/ID.sqlite.

    Rows of the training files are training tasks. Those of the others are validation tasks or test tasks by their
    database; where there is no training file, three of four databases are for training.
    """
    base = folder / "database"
    if not base.is_dir():
        raise ConfigError(
            f"env.database: the folder {str(folder)!r} has no folder 'database'; allowed: a SQLite file, or a folder "
            "in Spider's format: database/NAME/NAME.sqlite, tables.json, and dev.json or train_spider.json"
        )
    declared = _declared(folder / "tables.json")

    def find_file(row: Mapping[str, Any]) -> Path:
        name = str(row.get("db_id", ""))
        if declared is not None and name not in declared:
            raise ConfigError(f"{folder / 'tables.json'}: has no database {name!r}, which a question is about")
        return base / name / f"{name}.sqlite"

    if questions is not None:
        yield from _rows_of(Path(questions), "env.questions", find_file, None)
        return
    training = [folder / name for name in _SPIDER["train"] if (folder / name).is_file()]
    held_out = [folder / name for name in _SPIDER["held out"] if (folder / name).is_file()]
    if not training and not held_out:
        names = ", ".join(name for group in _SPIDER.values() for name in group)
        raise ConfigError(f"env.database: the folder {str(folder)!r} has no file with questions; allowed: {names}")
    for path in training:
        yield from _rows_of(path, "env.database", find_file, "train")
    for path in held_out:
        yield from _rows_of(path, "env.database", find_file, "held out" if training else None)


def _declared(path: Path) -> set[str] | None:
    if not path.is_file():
        return None
    listed = json_file(path, "env.database")
    if not isinstance(listed, list) or not all(isinstance(one, dict) and "db_id" in one for one in listed):
        raise ConfigError(
            f"env.database: {str(path)!r} must be a list of databases with db_id, as in Spider's tables.json"
        )
    return {str(one["db_id"]) for one in listed}


def _rows_of(path: Path, key: str, find_file: Any, part: str | None) -> list[dict[str, Any]]:
    def read(row: Mapping[str, Any], number: str) -> dict[str, Any]:
        text, gold = _field(row, _TEXT), _field(row, _GOLD)
        file = find_file(row)
        return {
            "task_id": str(row.get("task_id") or f"{path.stem}-{int(number.removeprefix('row ')) - 1}"),
            "database": str(file),
            "question": text,
            "gold": gold.strip().rstrip(";"),
            "ordered": bool(row["ordered"]) if isinstance(row.get("ordered"), bool) else ordering(gold),
            "split": given_split(row) or _split(part, file.stem if row.get("db_id") else _pattern(gold)),
        }

    return tasks_of(str(path), key, read, FORMATS)


def _split(part: str | None, about: str) -> str:
    if part == "train":
        return "train"
    if part is None:
        return split_of(f"rows {about}")
    return "validation" if split_of(f"held out {about}") == "train" else "test"


def _pattern(gold: str) -> str:
    """Return a query without its constants."""
    return " ".join(re.sub(r"'(?:[^']|'')*'|\b\d+(?:\.\d+)?\b", "?", gold).casefold().split())


def _field(row: Mapping[str, Any], names: tuple[str, ...]) -> str:
    found = next((row[name] for name in names if name in row), None)
    if not isinstance(found, str) or not found.strip():
        raise ValueError(f"it has no text {' or '.join(names)}")
    return found
