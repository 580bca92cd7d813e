"""Patterns of questions over a schema: one table, a table and one that it refers to, three tables in a row."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from offline_agent_environments.sql.database import Database
from offline_agent_environments.sql.guarded_sqlite import LimitExceeded
from offline_agent_environments.sql.schema import Column, Link, Table, quoted

_NAMING = ("name", "title", "city", "label")


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        pattern: The pattern with its tables and columns: what may not be in two splits.
        text: The question.
        gold: A right query, or for `writes` a right statement.
        ordered: Whether the order of the rows counts.
        writes: Whether rows are to be changed.
    """

    pattern: str
    text: str
    gold: str
    ordered: bool = False
    writes: bool = False


@dataclass(frozen=True, slots=True)
class _Facts:
    """A table and the roles of its columns; `shown` names a row, `groups` have few values, `numbers` many."""

    table: Table
    shown: Column | None
    groups: tuple[Column, ...]
    numbers: tuple[Column, ...]


def candidates(database: Database, rng: random.Random, writes: bool) -> Iterator[Question]:
    """Yield a question of every pattern that fits the database, constants drawn anew."""
    facts = {table.name: _facts(database, table) for table in database.schema.tables if table.rows}
    for one in facts.values():
        yield from _of_table(database, one, rng)
        for link in one.table.links:
            if link.target in facts and link.target != one.table.name:
                yield from _of_link(database, one, link, facts[link.target], rng)
                for further in facts[link.target].table.links:
                    if further.target in facts and further.target not in (one.table.name, link.target):
                        yield from _of_path(one, link, facts[link.target], further, facts[further.target])
        if writes:
            yield from _writing(database, one, {k.target for f in facts.values() for k in f.table.links}, rng)


def _facts(database: Database, table: Table) -> _Facts:
    shown, groups, numbers = None, [], []
    linked = {link.column for link in table.links} | set(table.primary)
    for column in table.columns:
        if column.name in linked:
            continue
        field, ident = quoted(column.name), quoted(table.name)
        try:
            distinct, filled = database.rows(f"select count(distinct {field}), count({field}) from {ident}")[0]
        except (sqlite3.Error, LimitExceeded):
            continue
        if column.kind == "number" and distinct >= 5:
            numbers.append(column)
        elif column.kind != "number" and 2 <= distinct <= 20 and filled >= 3 * distinct:
            groups.append(column)
        elif column.kind == "text" and distinct > 0.9 * table.rows and filled == table.rows:
            better = any(word in column.name.casefold() for word in _NAMING)
            if shown is None or (better and not any(word in shown.name.casefold() for word in _NAMING)):
                shown = column
    return _Facts(table, shown, tuple(groups), tuple(numbers))


# Each pattern: kind, question, query, whether the order of its rows counts. In the texts `t`, `p`, `m`, `e` are tables,
# `s` the column that names a row, `g` one of few values, `n` one of numbers; `v` and `b` are drawn values, in capitals
# as the question says them; `rows`, `owners`, `said`, `group`, `which` are the same in words.
_Pattern = tuple[str, str, str, bool]
_COUNT = ("count", "How many {rows} are there?", "SELECT COUNT(*) FROM {t}", False)
_OF_GROUP: tuple[_Pattern, ...] = (
    ("count of", "How many {rows} have the {group} {V}?", "SELECT COUNT(*) FROM {t} WHERE {g} = {v}", False),
    ("groups", "For each {group}, how many {rows} are there? Give the {group} and the number.",
     "SELECT {g}, COUNT(*) FROM {t} GROUP BY {g}", False),
)  # fmt: skip
_MEAN_OF = ("mean of", "What is the average {which} of the {rows} with the {group} {V}?",
            "SELECT AVG({n}) FROM {t} WHERE {g} = {v}", False)  # fmt: skip
_BOTH = ("both", "List the {said} of all {rows} with the {group} {V} and a {which} below {B}.",
         "SELECT {s} FROM {t} WHERE {g} = {v} AND {n} < {b}", False)  # fmt: skip
_OF_NUMBER: tuple[_Pattern, ...] = (
    ("count above", "How many {rows} have a {which} above {B}?", "SELECT COUNT(*) FROM {t} WHERE {n} > {b}", False),
    ("range", "What are the lowest and the highest {which} of the {rows}?", "SELECT MIN({n}), MAX({n}) FROM {t}",
     False),
)  # fmt: skip
_SHOWN_BY_NUMBER: tuple[_Pattern, ...] = (
    ("above", "List the {said} of all {rows} with a {which} above {B}.", "SELECT {s} FROM {t} WHERE {n} > {b}", False),
    ("highest", "Give the {said} of the {rows} with the highest {which}.",
     "SELECT {s} FROM {t} WHERE {n} = (SELECT MAX({n}) FROM {t})", False),
    ("above mean", "List the {said} of all {rows} with a {which} above the average.",
     "SELECT {s} FROM {t} WHERE {n} > (SELECT AVG({n}) FROM {t})", False),
    ("first", "List the {said} and the {which} of the {few} {rows} with the highest {which}, the highest first;"
     " where it is equal, by {said}.", "SELECT {s}, {n} FROM {t} ORDER BY {n} DESC, {s} LIMIT {few}", True),
)  # fmt: skip
_OF_LINK: tuple[_Pattern, ...] = (
    ("of one", "How many {rows} belong to the {owners} row with the {said} {V}?",
     "SELECT COUNT(*) FROM {t} JOIN {p} ON {on} WHERE {s} = {v}", False),
    ("many", "List the {said} of all {owners} with more than {few} {rows}.",
     "SELECT {s} FROM {p} JOIN {t} ON {on} GROUP BY {key} HAVING COUNT(*) > {few}", False),
    ("none", "List the {said} of all {owners} without any {rows}.",
     "SELECT {s} FROM {p} WHERE NOT EXISTS (SELECT 1 FROM {t} WHERE {on})", False),
    ("most", "List the {said} of the {few} {owners} with the most {rows}, and how many they have, the most first;"
     " where it is equal, by {said}.",
     "SELECT {s}, COUNT(*) FROM {p} JOIN {t} ON {on} GROUP BY {key} ORDER BY COUNT(*) DESC, {s} LIMIT {few}", True),
)  # fmt: skip
_SUMS = ("sums", "For each of the {owners} that has {rows}, give its {said} and the total {which} of its {rows}.",
         "SELECT {s}, SUM({n}) FROM {p} JOIN {t} ON {on} GROUP BY {key}", False)  # fmt: skip
_MEAN_OVER = ("mean over", "What is the average {which} of the {rows} whose {owners} have the {group} {V}?",
              "SELECT AVG({n}) FROM {t} JOIN {p} ON {on} WHERE {p}.{g} = {v}", False)  # fmt: skip
_WITH_SOME = (
    "with some", "List the {said} of all {owners} with at least one of the {rows} with the {group} {V}, each once.",
    "SELECT {s} FROM {p} WHERE EXISTS (SELECT 1 FROM {t} WHERE {on} AND {t}.{g} = {v})", False,
)  # fmt: skip
_JOINED = "FROM {t} JOIN {m} ON {t}.{column} = {m}.{held} JOIN {e} ON {m}.{further} = {key}"
_PATH = ("path", "For each of the {owners} that has any, give its {said} and the number of {rows} of its {via}.",
         f"SELECT {{s}}, COUNT(*) {_JOINED} GROUP BY {{key}}", False)  # fmt: skip
_PATH_SUM = (
    "path sum",
    "For each of the {owners} that has any, give its {said} and the highest {which} of the {rows} of its {via}.",
    f"SELECT {{s}}, MAX({{t}}.{{n}}) {_JOINED} GROUP BY {{key}}", False,
)  # fmt: skip
_RAISE = ("raise", "Raise the {which} of all {rows} with the {group} {V} by {few}.",
          "UPDATE {t} SET {n} = {n} + {few} WHERE {g} = {v}", False)  # fmt: skip
_DELETE = ("delete", "Delete all {rows} with a {which} above {B}.", "DELETE FROM {t} WHERE {n} > {b}", False)


def _of_table(database: Database, one: _Facts, rng: random.Random) -> Iterator[Question]:
    names = {"t": quoted(one.table.name), "rows": words(one.table.name)}
    if one.shown is not None:
        names |= {"s": quoted(one.shown.name), "said": words(one.shown.name)}
    yield _question(_COUNT, names, one, ())
    for group in one.groups:
        names |= _grouped(group) | _drawn("v", database, one.table, group, rng)
        yield from (_question(pattern, names, one, (group,)) for pattern in _OF_GROUP)
        for number in one.numbers:
            names |= _numbered(number)
            yield _question(_MEAN_OF, names, one, (group, number))
            if one.shown is not None:
                names |= _drawn("b", database, one.table, number, rng)
                yield _question(_BOTH, names, one, (group, number))
    for number in one.numbers:
        names |= _numbered(number) | _drawn("b", database, one.table, number, rng)
        names["few"] = str(rng.randint(2, 5))
        for pattern in (*_OF_NUMBER, *(() if one.shown is None else _SHOWN_BY_NUMBER)):
            yield _question(pattern, names, one, (number,))


def _of_link(database: Database, one: _Facts, link: Link, other: _Facts, rng: random.Random) -> Iterator[Question]:
    """Yield questions over a table and one that it refers to."""
    if other.shown is None:
        return
    t, p = quoted(one.table.name), quoted(other.table.name)
    key = f"{p}.{quoted(link.key)}"
    names = {"t": t, "p": p, "rows": words(one.table.name), "owners": words(other.table.name), "key": key,
             "on": f"{t}.{quoted(link.column)} = {key}", "s": f"{p}.{quoted(other.shown.name)}",
             "said": words(other.shown.name)}  # fmt: skip
    names |= _drawn("v", database, other.table, other.shown, rng) | {"few": str(rng.randint(1, 4))}
    by = (Column(link.column, "", "other"),)
    yield from (_question(pattern, names, one, by, other) for pattern in _OF_LINK)
    for number in one.numbers:
        names |= {**_numbered(number), "n": f"{t}.{quoted(number.name)}"}
        yield _question(_SUMS, names, one, (*by, number), other)
        for group in other.groups:
            names |= _grouped(group) | _drawn("v", database, other.table, group, rng)
            yield _question(_MEAN_OVER, names, one, (*by, number, group), other)
    for group in one.groups:
        names |= _grouped(group) | _drawn("v", database, one.table, group, rng)
        yield _question(_WITH_SOME, names, one, (*by, group), other)


def _of_path(one: _Facts, link: Link, middle: _Facts, further: Link, end: _Facts) -> Iterator[Question]:
    """Yield questions over three tables in a row."""
    if end.shown is None:
        return
    e = quoted(end.table.name)
    names = {"t": quoted(one.table.name), "m": quoted(middle.table.name), "e": e, "column": quoted(link.column),
             "held": quoted(link.key), "further": quoted(further.column), "key": f"{e}.{quoted(further.key)}",
             "s": f"{e}.{quoted(end.shown.name)}", "said": words(end.shown.name), "rows": words(one.table.name),
             "via": words(middle.table.name), "owners": words(end.table.name)}  # fmt: skip
    by = (Column(link.column, "", "other"), Column(further.column, "", "other"))
    yield _question(_PATH, names, one, by, end)
    for number in one.numbers:
        yield _question(_PATH_SUM, names | _numbered(number), one, (*by, number), end)


def _writing(database: Database, one: _Facts, referred: set[str], rng: random.Random) -> Iterator[Question]:
    names = {"t": quoted(one.table.name), "rows": words(one.table.name)}
    for number in one.numbers:
        names |= _numbered(number) | {"few": str(rng.randint(2, 30))}
        for group in one.groups:
            names |= _grouped(group) | _drawn("v", database, one.table, group, rng)
            yield _question(_RAISE, names, one, (number, group), writes=True)
        if one.table.name not in referred:
            names |= _drawn("b", database, one.table, number, rng)
            yield _question(_DELETE, names, one, (number,), writes=True)


def _question(
    pattern: _Pattern,
    names: Mapping[str, str],
    one: _Facts,
    columns: tuple[Column, ...],
    other: _Facts | None = None,
    writes: bool = False,
) -> Question:
    kind, text, gold, ordered = pattern
    parts = [kind, one.table.name, *(column.name for column in columns), *([other.table.name] if other else [])]
    return Question(" / ".join(parts), text.format(**names), gold.format(**names), ordered, writes)


def _grouped(column: Column) -> dict[str, str]:
    return {"g": quoted(column.name), "group": words(column.name)}


def _numbered(column: Column) -> dict[str, str]:
    return {"n": quoted(column.name), "which": words(column.name)}


def _drawn(name: str, database: Database, table: Table, column: Column, rng: random.Random) -> dict[str, str]:
    """Return a value of a column for a query, and in capitals for a question."""
    value = _value(database, table, column, rng)
    literal = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
    return {name: literal, name.upper(): f"'{value}'" if isinstance(value, str) else str(value)}


def _value(database: Database, table: Table, column: Column, rng: random.Random) -> Any:
    """Return a value of the column, drawn from its rows; of numbers one from the middle."""
    field, ident = quoted(column.name), quoted(table.name)
    values = [
        row[0]
        for row in database.rows(
            f"select distinct {field} from {ident} where {field} is not null order by {field} limit 5000"
        )
    ]
    if column.kind == "number":
        values = values[len(values) // 4 : -(-3 * len(values) // 4)] or values
    value = rng.choice(values)
    return round(value) if isinstance(value, float) and abs(value) >= 10 else value


def words(name: str) -> str:
    """Return an identifier in words: `unit_price` and `UnitPrice` are `unit price`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name.replace("_", " "))
    return " ".join(spaced.split()).lower()
