"""Patterns of questions over a schema: one table, a table and one that it refers to, three tables in a row."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Iterator
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


def _of_table(database: Database, one: _Facts, rng: random.Random) -> Iterator[Question]:
    t, rows = quoted(one.table.name), words(one.table.name)
    yield _question("count", one, (), f"How many {rows} are there?", f"SELECT COUNT(*) FROM {t}")
    for group in one.groups:
        g, value = quoted(group.name), _value(database, one.table, group, rng)
        said = words(group.name)
        yield _question(
            "count of",
            one,
            (group,),
            f"How many {rows} have the {said} {_said(value)}?",
            f"SELECT COUNT(*) FROM {t} WHERE {g} = {_literal(value)}",
        )
        yield _question(
            "groups",
            one,
            (group,),
            f"For each {said}, how many {rows} are there? Give the {said} and the number.",
            f"SELECT {g}, COUNT(*) FROM {t} GROUP BY {g}",
        )
        for number in one.numbers:
            n, which = quoted(number.name), words(number.name)
            yield _question(
                "mean of",
                one,
                (group, number),
                f"What is the average {which} of the {rows} with the {said} {_said(value)}?",
                f"SELECT AVG({n}) FROM {t} WHERE {g} = {_literal(value)}",
            )
            if one.shown is not None:
                s, bound = quoted(one.shown.name), _value(database, one.table, number, rng)
                yield _question(
                    "both",
                    one,
                    (group, number),
                    f"List the {words(one.shown.name)} of all {rows} with the {said} {_said(value)} and a"
                    f" {which} below {_said(bound)}.",
                    f"SELECT {s} FROM {t} WHERE {g} = {_literal(value)} AND {n} < {_literal(bound)}",
                )
    for number in one.numbers:
        n, which = quoted(number.name), words(number.name)
        bound, most = _value(database, one.table, number, rng), rng.randint(2, 5)
        yield _question(
            "count above",
            one,
            (number,),
            f"How many {rows} have a {which} above {_said(bound)}?",
            f"SELECT COUNT(*) FROM {t} WHERE {n} > {_literal(bound)}",
        )
        yield _question(
            "range",
            one,
            (number,),
            f"What are the lowest and the highest {which} of the {rows}?",
            f"SELECT MIN({n}), MAX({n}) FROM {t}",
        )
        if one.shown is None:
            continue
        s, said = quoted(one.shown.name), words(one.shown.name)
        yield _question(
            "above",
            one,
            (number,),
            f"List the {said} of all {rows} with a {which} above {_said(bound)}.",
            f"SELECT {s} FROM {t} WHERE {n} > {_literal(bound)}",
        )
        yield _question(
            "highest",
            one,
            (number,),
            f"Give the {said} of the {rows} with the highest {which}.",
            f"SELECT {s} FROM {t} WHERE {n} = (SELECT MAX({n}) FROM {t})",
        )
        yield _question(
            "above mean",
            one,
            (number,),
            f"List the {said} of all {rows} with a {which} above the average.",
            f"SELECT {s} FROM {t} WHERE {n} > (SELECT AVG({n}) FROM {t})",
        )
        yield _question(
            "first",
            one,
            (number,),
            f"List the {said} and the {which} of the {most} {rows} with the highest {which}, the highest first;"
            f" where it is equal, by {said}.",
            f"SELECT {s}, {n} FROM {t} ORDER BY {n} DESC, {s} LIMIT {most}",
            ordered=True,
        )


def _of_link(database: Database, one: _Facts, link: Link, other: _Facts, rng: random.Random) -> Iterator[Question]:
    """Yield questions over a table and one that it refers to."""
    if other.shown is None:
        return
    t, p = quoted(one.table.name), quoted(other.table.name)
    on = f"{t}.{quoted(link.column)} = {p}.{quoted(link.key)}"
    s, said = f"{p}.{quoted(other.shown.name)}", words(other.shown.name)
    rows, owners = words(one.table.name), words(other.table.name)
    value, few = _value(database, other.table, other.shown, rng), rng.randint(1, 4)
    key = f"{p}.{quoted(link.key)}"
    by = (Column(link.column, "", "other"),)
    yield _question(
        "of one",
        one,
        by,
        f"How many {rows} belong to the {owners} row with the {said} {_said(value)}?",
        f"SELECT COUNT(*) FROM {t} JOIN {p} ON {on} WHERE {s} = {_literal(value)}",
        other=other,
    )
    yield _question(
        "many",
        one,
        by,
        f"List the {said} of all {owners} with more than {few} {rows}.",
        f"SELECT {s} FROM {p} JOIN {t} ON {on} GROUP BY {key} HAVING COUNT(*) > {few}",
        other=other,
    )
    yield _question(
        "none",
        one,
        by,
        f"List the {said} of all {owners} without any {rows}.",
        f"SELECT {s} FROM {p} WHERE NOT EXISTS (SELECT 1 FROM {t} WHERE {on})",
        other=other,
    )
    yield _question(
        "most",
        one,
        by,
        f"List the {said} of the {few} {owners} with the most {rows}, and how many they have, the most first;"
        f" where it is equal, by {said}.",
        f"SELECT {s}, COUNT(*) FROM {p} JOIN {t} ON {on} GROUP BY {key} ORDER BY COUNT(*) DESC, {s} LIMIT {few}",
        ordered=True,
        other=other,
    )
    for number in one.numbers:
        n, which = f"{t}.{quoted(number.name)}", words(number.name)
        yield _question(
            "sums",
            one,
            (*by, number),
            f"For each of the {owners} that has {rows}, give its {said} and the total {which} of its {rows}.",
            f"SELECT {s}, SUM({n}) FROM {p} JOIN {t} ON {on} GROUP BY {key}",
            other=other,
        )
        for group in other.groups:
            g, held = f"{p}.{quoted(group.name)}", _value(database, other.table, group, rng)
            yield _question(
                "mean over",
                one,
                (*by, number, group),
                f"What is the average {which} of the {rows} whose {owners} have the {words(group.name)} {_said(held)}?",
                f"SELECT AVG({n}) FROM {t} JOIN {p} ON {on} WHERE {g} = {_literal(held)}",
                other=other,
            )
    for group in one.groups:
        g, held = f"{t}.{quoted(group.name)}", _value(database, one.table, group, rng)
        yield _question(
            "with some",
            one,
            (*by, group),
            f"List the {said} of all {owners} with at least one of the {rows} with the {words(group.name)}"
            f" {_said(held)}, each once.",
            f"SELECT {s} FROM {p} WHERE EXISTS (SELECT 1 FROM {t} WHERE {on} AND {g} = {_literal(held)})",
            other=other,
        )


def _of_path(one: _Facts, link: Link, middle: _Facts, further: Link, end: _Facts) -> Iterator[Question]:
    """Yield questions over three tables in a row."""
    if end.shown is None:
        return
    t, m, e = quoted(one.table.name), quoted(middle.table.name), quoted(end.table.name)
    joined = (
        f"FROM {t} JOIN {m} ON {t}.{quoted(link.column)} = {m}.{quoted(link.key)}"
        f" JOIN {e} ON {m}.{quoted(further.column)} = {e}.{quoted(further.key)}"
    )
    s, key, said = f"{e}.{quoted(end.shown.name)}", f"{e}.{quoted(further.key)}", words(end.shown.name)
    by = (Column(link.column, "", "other"), Column(further.column, "", "other"))
    rows, via, owners = words(one.table.name), words(middle.table.name), words(end.table.name)
    yield _question(
        "path",
        one,
        by,
        f"For each of the {owners} that has any, give its {said} and the number of {rows} of its {via}.",
        f"SELECT {s}, COUNT(*) {joined} GROUP BY {key}",
        other=end,
    )
    for number in one.numbers:
        which = words(number.name)
        yield _question(
            "path sum",
            one,
            (*by, number),
            f"For each of the {owners} that has any, give its {said} and the highest {which} of the {rows} of"
            f" its {via}.",
            f"SELECT {s}, MAX({t}.{quoted(number.name)}) {joined} GROUP BY {key}",
            other=end,
        )


def _writing(database: Database, one: _Facts, referred: set[str], rng: random.Random) -> Iterator[Question]:
    t, rows = quoted(one.table.name), words(one.table.name)
    for number in one.numbers:
        n, which, amount = quoted(number.name), words(number.name), rng.randint(2, 30)
        for group in one.groups:
            g, value = quoted(group.name), _value(database, one.table, group, rng)
            yield _question(
                "raise",
                one,
                (number, group),
                f"Raise the {which} of all {rows} with the {words(group.name)} {_said(value)} by {amount}.",
                f"UPDATE {t} SET {n} = {n} + {amount} WHERE {g} = {_literal(value)}",
                writes=True,
            )
        if one.table.name not in referred:
            bound = _value(database, one.table, number, rng)
            yield _question(
                "delete",
                one,
                (number,),
                f"Delete all {rows} with a {which} above {_said(bound)}.",
                f"DELETE FROM {t} WHERE {n} > {_literal(bound)}",
                writes=True,
            )


def _question(
    kind: str,
    one: _Facts,
    columns: tuple[Column, ...],
    text: str,
    gold: str,
    other: _Facts | None = None,
    ordered: bool = False,
    writes: bool = False,
) -> Question:
    parts = [kind, one.table.name, *(column.name for column in columns), *([other.table.name] if other else [])]
    return Question(" / ".join(parts), text, gold, ordered, writes)


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


def _literal(value: Any) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _said(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def words(name: str) -> str:
    """Return an identifier in words: `unit_price` and `UnitPrice` are `unit price`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name.replace("_", " "))
    return " ".join(spaced.split()).lower()
