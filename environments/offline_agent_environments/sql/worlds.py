"""Embedded databases: six schemas whose rows are drawn from a seed."""

from __future__ import annotations

import random
import sqlite3
from functools import lru_cache
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent_environments.sql.database import Database

SEEDS = {"train": range(0, 5), "validation": range(1000, 1003), "test": range(2000, 2003)}
"""Seeds of the databases of a split."""


def _words(text: str) -> list[str]:
    return text.split()


_FIRST = _words(
    "Ada Bruno Carla Dino Edda Fritz Greta Hugo Ines Jonas Klara Lars Mona Nils Olga Paul Rita Sven Tilda Uwe Vera"
    " Willi Yara Zeno Amir Bella Chen Dalia Emil Farah"
)
_LAST = _words(
    "Adler Berg Conti Dahl Engel Falk Gruber Holm Ivanov Jensen Keller Lund Moreau Novak Olsen Petit Rossi Santos Tamm"
    " Ude Vogel Weber Yilmaz Zander"
)
_ADJECTIVES = _words(
    "Silent Golden Broken Hidden Last Bright Lonely Distant Frozen Early Gentle Hollow Iron Blue Restless Wild"
)
_NOUNS = _words(
    "River Garden Winter Harbour Mirror Forest Letter Bridge Island Signal Shadow Market Journey Tower Lantern Valley"
)
_CITIES = _words(
    "Arlen Borgo Calder Dunmore Elvas Fenwick Gorna Halden Istra Jarvik Kelso Lomas Marau Nordby Orvie Pelham"
)
_FIELDS = _words("biology chemistry history law mathematics music physics")

# A column is (name, rule): person, title, city: unique names; a list: one of it; (low, high): a whole number;
# (low, high, digits): a decimal; "date": a day; "-> table": a reference; "key": the primary key.
_WORLDS: dict[str, dict[str, tuple[int, dict[str, Any]]]] = {
    "library": {
        "authors": (14, {"id": "key", "name": "person", "country": ["Chile", "Ghana", "Japan", "Norway"],
                         "born": (1900, 1995)}),
        "books": (40, {"id": "key", "title": "title", "author_id": "-> authors",
                       "genre": ["crime", "essay", "novel", "poetry"], "pages": (80, 900), "year": (1950, 2024)}),
        "members": (25, {"id": "key", "name": "person", "city": ["Arlen", "Borgo", "Calder"], "joined": (2005, 2024)}),
        "loans": (90, {"id": "key", "book_id": "-> books", "member_id": "-> members", "days": (1, 60),
                       "fine": (0, 20, 2)}),
    },
    "clinic": {
        "doctors": (12, {"id": "key", "name": "person", "speciality": ["eyes", "heart", "skin"], "years": (1, 40)}),
        "patients": (35, {"id": "key", "name": "person", "born": (1930, 2015), "blood": ["A", "AB", "B", "O"]}),
        "visits": (100, {"id": "key", "doctor_id": "-> doctors", "patient_id": "-> patients", "minutes": (5, 90),
                         "cost": (20, 400, 2), "kind": ["check", "emergency", "surgery"]}),
    },
    "school": {
        "teachers": (12, {"id": "key", "name": "person", "field": _FIELDS, "salary": (30000, 90000)}),
        "courses": (22, {"id": "key", "title": "title", "teacher_id": "-> teachers", "credits": (1, 12),
                         "level": ["advanced", "basic"]}),
        "students": (40, {"id": "key", "name": "person", "year": (1, 6), "home": ["Elvas", "Fenwick", "Gorna"]}),
        "enrolments": (110, {"id": "key", "student_id": "-> students", "course_id": "-> courses",
                             "grade": (1, 100)}),
    },
    "airline": {
        "airports": (14, {"id": "key", "city": "city", "region": ["east", "north", "south", "west"],
                          "runways": (1, 6)}),
        "planes": (16, {"id": "key", "name": "title", "maker": ["Avia", "Borea", "Corvo"], "seats": (40, 420)}),
        "flights": (110, {"id": "key", "plane_id": "-> planes", "origin_id": "-> airports", "miles": (100, 5200),
                          "delay": (0, 180), "status": ["cancelled", "late", "on time"]}),
    },
    "store": {
        "customers": (25, {"id": "key", "name": "person", "city": ["Halden", "Istra", "Jarvik", "Kelso"],
                           "points": (0, 900)}),
        "products": (28, {"id": "key", "name": "title", "category": ["books", "games", "tools", "toys"],
                          "price": (3, 250, 2), "stock": (0, 80)}),
        "orders": (60, {"id": "key", "customer_id": "-> customers", "day": "date",
                        "state": ["open", "paid", "returned", "sent"]}),
        "order_items": (130, {"id": "key", "order_id": "-> orders", "product_id": "-> products", "quantity": (1, 9)}),
    },
    "cinema": {
        "directors": (12, {"id": "key", "name": "person", "country": ["Brazil", "France", "India", "Korea"],
                           "born": (1935, 1995)}),
        "films": (36, {"id": "key", "title": "title", "director_id": "-> directors",
                       "genre": ["comedy", "drama", "horror", "thriller"], "length": (70, 210), "gross": (1, 900)}),
        "halls": (8, {"id": "key", "name": "city", "seats": (40, 500)}),
        "screenings": (120, {"id": "key", "film_id": "-> films", "hall_id": "-> halls", "tickets": (0, 300),
                             "hour": (10, 23)}),
    },
}  # fmt: skip

NAMES = tuple(_WORLDS)


def names(split: str) -> list[str]:
    """Return the names of a split's databases, e.g. `library-0`."""
    return [f"{world}-{seed}" for seed in SEEDS[split] for world in _WORLDS]


@lru_cache(maxsize=256)
def database(name: str) -> Database:
    """Return an embedded database.

    Raises:
        ConfigError: There is none of that name.
    """
    world, _, seed = name.rpartition("-")
    if world not in _WORLDS or not seed.isdecimal():
        raise ConfigError(f"env.database: there is no embedded database {name!r}, e.g. 'library-0'")
    rng = random.Random(f"{world} {int(seed)}")
    connection = sqlite3.connect(":memory:")
    try:
        counts: dict[str, int] = {}
        for table, (usual, columns) in _WORLDS[world].items():
            counts[table] = max(6, usual + rng.randint(-usual // 6, usual // 6))
            _fill(connection, table, columns, counts, rng)
        connection.commit()
        return Database(name, connection.serialize(), None)
    finally:
        connection.close()


def _fill(
    connection: sqlite3.Connection, table: str, columns: dict[str, Any], counts: dict[str, int], rng: random.Random
) -> None:
    declared, drawn = [], []
    for column, rule in columns.items():
        text, values = _column(rule, counts[table], counts, rng)
        declared.append(f"{column} {text}")
        drawn.append(values)
    connection.execute(f"create table {table} ({', '.join(declared)})")
    marks = ", ".join("?" * len(columns))
    connection.executemany(f"insert into {table} values ({marks})", list(zip(*drawn, strict=True)))


def _column(rule: Any, count: int, counts: dict[str, int], rng: random.Random) -> tuple[str, list[Any]]:
    """Return a column's declaration and its values."""
    if rule == "key":
        return "INTEGER PRIMARY KEY", list(range(1, count + 1))
    if isinstance(rule, str) and rule in _NAMES:
        return "TEXT NOT NULL", rng.sample(_NAMES[rule], count)
    if rule == "date":
        return "TEXT", [_date(rng) for _ in range(count)]
    if isinstance(rule, list):
        return "TEXT", [rng.choice(rule) for _ in range(count)]
    if isinstance(rule, str):
        target = rule.removeprefix("-> ")
        linked = rng.sample(range(1, counts[target] + 1), -(-counts[target] * 5 // 6))  # some have none
        return f"INTEGER REFERENCES {target}(id)", [rng.choice(linked) for _ in range(count)]
    if len(rule) == 3:
        return "REAL", [round(rng.uniform(rule[0], rule[1]), rule[2]) for _ in range(count)]
    return "INTEGER", [rng.randint(*rule) for _ in range(count)]


def _date(rng: random.Random) -> str:
    return f"{rng.randint(2021, 2024)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


_NAMES = {
    "person": [f"{first} {last}" for first in _FIRST for last in _LAST],
    "title": [f"{adjective} {noun}" for adjective in _ADJECTIVES for noun in _NOUNS],
    "city": _CITIES,
}
