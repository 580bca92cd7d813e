from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from offline_agent_environments.sql.judge import sql


@pytest.fixture()
def database(tmp_path: Path) -> Path:
    path = tmp_path / "d.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (id integer, name text)")
        connection.executemany("insert into t values (?, ?)", [(1, "a"), (2, "b"), (3, "c")])
    return path


def test_sql(database: Path) -> None:
    assert sql("select name from t where id < 3", "select name from t limit 2", database).success is True
    assert sql("select name from t order by id desc", "select name from t", database).success is True
    wrong_order = sql("select name from t order by id desc", "select name from t ORDER  BY id", database)
    assert wrong_order.success is False and wrong_order.evidence["ordered"] is True
    assert sql("select 1", "select name from t", database).evidence["missing"] == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize(
    "query",
    [
        "drop table t", "insert into t values (4, 'd')", "update t set name = 'x'", "attach 'x.sqlite' as x", "selec",
        "pragma writable_schema = 1", "select load_extension('x')", "select 1; select 2", "create table u (i)", "",
        "\0",
    ],
)  # fmt: skip
def test_sql_that_does_not_only_read_is_wrong_and_changes_nothing(database: Path, query: str) -> None:
    before = database.read_bytes()
    verdict = sql(query, "select name from t", database)
    assert verdict.score == 0.0 and database.read_bytes() == before and not Path("x.sqlite").exists()


ENDLESS = "with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c"


def test_sql_that_meets_a_damaged_page_has_no_score(tmp_path: Path) -> None:
    path = tmp_path / "damaged.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript("create table t (id integer); create table damaged (id integer)")
        root, size = (connection.execute(text).fetchone()[0] for text in (
            "select rootpage from sqlite_master where name = 'damaged'", "pragma page_size"))  # fmt: skip
    connection.close()
    content = bytearray(path.read_bytes())
    content[(root - 1) * size : root * size] = b"\xff" * size
    path.write_bytes(content)
    verdict = sql("select * from damaged", "select * from t", path)
    assert verdict.score is None and "malformed" in str(verdict.error)


def test_sql_that_alone_runs_out_of_limits_is_wrong(database: Path) -> None:
    for verdict, word in (
        (sql(ENDLESS, "select 1", database, seconds=0.2), "longer than"),
        (sql("select a.id from t a, t b, t c", "select 1", database, max_rows=5), "more than 5 rows"),
        (sql("select zeroblob(900000)", "select 1", database), "more than 250,000 bytes"),
    ):
        assert verdict.score == 0.0 and word in verdict.evidence["error"]


def test_sql_that_cannot_be_judged(database: Path, tmp_path: Path) -> None:
    for verdict, word in (
        (sql("select 1", "selec", database), "the right query"),
        (sql("select 1", "select 1", tmp_path / "none.sqlite"), "no database"),
        (sql("select 1", ENDLESS, database, seconds=0.2), "longer than"),
    ):
        assert verdict.score is None and word in (verdict.error or "")
