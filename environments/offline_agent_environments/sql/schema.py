"""Schemas of SQLite databases: tables, columns, keys, references, and what a policy is told of them."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from typing import Literal

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED_WORDS = (
    "add all alter and as asc between by case check collate column commit constraint create cross current date default"
    " delete desc distinct drop else end escape except exists foreign from full group having if in index inner insert"
    " intersect into is join key left like limit match natural no not null of offset on or order outer over plan"
    " primary references release rename replace right rollback row rows select set table temp then to transaction"
    " trigger union unique update using values view virtual when where window with without"
)
_RESERVED = frozenset(_RESERVED_WORDS.split())


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `kind` is what its declared type says of its values (SQLite's affinity)."""

    name: str
    declared: str
    kind: Literal["number", "text", "other"]


@dataclass(frozen=True, slots=True)
class Link:
    """A reference: `column` of the table names a row of `target` by its column `key`."""

    column: str
    target: str
    key: str


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: Its name.
        columns: In order.
        primary: Names of the columns of the primary key.
        links: References to other tables, of one column each.
        fixed: Columns whose values identify rows or refer to them: keys, references, and what is declared unique.
        rows: Number of rows.
        has_rowid: Whether its rows have SQLite's row number.
    """

    name: str
    columns: tuple[Column, ...]
    primary: tuple[str, ...]
    links: tuple[Link, ...]
    fixed: frozenset[str]
    rows: int
    has_rowid: bool

    def described(self) -> str:
        """Return the table in words, a line for each column."""
        links = {link.column: link for link in self.links}
        lines = [f"{self.name}, {self.rows} row{'' if self.rows == 1 else 's'}"]
        for column in self.columns:
            text = f"  {column.name} {column.declared}".rstrip()
            if column.name in self.primary:
                text += ", primary key"
            if column.name in links:
                text += f", references {links[column.name].target}({links[column.name].key})"
            lines.append(text)
        return "\n".join(lines)


@dataclass(frozen=True)
class Schema:
    """The tables of a database, by name as it writes them."""

    tables: tuple[Table, ...]

    @property
    def names(self) -> list[str]:
        """Names of the tables."""
        return [table.name for table in self.tables]

    def __getitem__(self, name: str) -> Table:
        return next(table for table in self.tables if table.name == name)

    def find(self, name: str) -> Table | None:
        """Return the table of that name, in any case; None where there is none."""
        wanted = name.strip().strip('"[]`').casefold()
        return next((table for table in self.tables if table.name.casefold() == wanted), None)


def quoted(name: str) -> str:
    """Return an identifier as SQL writes it: quoted where it must be."""
    if _PLAIN.match(name) and name.casefold() not in _RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def read_schema(connection: sqlite3.Connection) -> Schema:
    """Return the schema of an unguarded connection; virtual and internal tables and views are left out.

    Raises:
        sqlite3.Error: It cannot be read.
    """
    listed = connection.execute(
        "select name, sql from sqlite_master where type = 'table' and substr(name, 1, 7) <> 'sqlite_' order by name"
    ).fetchall()
    names = [name for name, sql in listed if not re.match(r"\s*create\s+virtual", sql or "", re.IGNORECASE)]
    return Schema(tuple(_table(connection, name, names) for name in names))


def _table(connection: sqlite3.Connection, name: str, names: list[str]) -> Table:
    ident = quoted(name)
    info = connection.execute(f"pragma table_info({ident})").fetchall()
    columns = tuple(Column(row[1], row[2] or "", _kind(row[2] or "")) for row in info)
    primary = tuple(row[1] for row in sorted((row for row in info if row[5]), key=lambda row: row[5]))
    links, fixed = [], set(primary)
    spelled = {other.casefold(): other for other in names}
    references = connection.execute(f"pragma foreign_key_list({ident})").fetchall()
    several = {row[0] for row in references if row[1] > 0}
    for number, _, target, column, key, *_ in sorted(references, key=lambda row: (row[0], row[1])):
        fixed.add(column)
        found = spelled.get(target.casefold())
        if found is None or number in several:
            continue
        links.append(Link(_spelled(column, columns), found, key or _key_of(connection, found)))
    for index in connection.execute(f"pragma index_list({ident})").fetchall():
        if index[2]:
            fixed.update(row[2] for row in connection.execute(f"pragma index_info({quoted(index[1])})") if row[2])
    fixed_names = frozenset(
        column.name for column in columns if column.name.casefold() in {f.casefold() for f in fixed}
    )
    count = int(connection.execute(f"select count(*) from {ident}").fetchone()[0])
    try:
        connection.execute(f"select rowid from {ident} limit 1").fetchall()
        has_rowid = True
    except sqlite3.OperationalError:
        has_rowid = False
    return Table(
        name, columns, primary, tuple(sorted(set(links), key=lambda k: k.column)), fixed_names, count, has_rowid
    )


def _spelled(name: str, columns: tuple[Column, ...]) -> str:
    return next((column.name for column in columns if column.name.casefold() == name.casefold()), name)


def _key_of(connection: sqlite3.Connection, table: str) -> str:
    info = connection.execute(f"pragma table_info({quoted(table)})").fetchall()
    return next((str(row[1]) for row in info if row[5]), "rowid")


def _kind(declared: str) -> Literal["number", "text", "other"]:
    upper = declared.upper()
    if any(word in upper for word in ("INT", "REAL", "FLOA", "DOUB", "NUM", "DEC")):
        return "number"
    return "text" if any(word in upper for word in ("CHAR", "CLOB", "TEXT")) else "other"
