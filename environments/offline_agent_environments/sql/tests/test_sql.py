"""SQL: rows judged on the database and a changed copy, generated questions, files of users, and refusals."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError
from offline_agent.records import Task
from offline_agent_environments.sql import SQL, worlds
from offline_agent_environments.sql import database as databases
from offline_agent_environments.sql.database import discriminating
from tests.helpers.played import call, expert, play, share

SPEC = EnvSpec.load("sql")
CHINOOK = Path(os.environ.get("SHARED_DATA", Path(__file__).parents[5] / "shared" / "data")) / "chinook.sqlite"


def _task(gold: str, database: str = "library-0", **more: Any) -> Task:
    return Task("t", "train", {"database": database, "question": "?", "gold": gold, **more})


def _verdict(gold: str, answer: str, **more: Any) -> Any:
    return play(SPEC, _task(gold, **more), [call("answer", sql=answer)]).verdict()


def _database(path: Path) -> Path:
    with sqlite3.connect(path) as connection:
        connection.executescript(
            "create table Artist (ArtistId integer primary key, Name text);"
            'create table "Order" (Id integer primary key, ArtistId integer references Artist (ArtistId), '
            "Amount integer)"
        )
        connection.executemany("insert into Artist values (?, ?)", [(i, f"A{i}") for i in range(12)])
        connection.executemany('insert into "Order" values (?, ?, ?)', [(i, i * 7 % 11, i * i % 50) for i in range(60)])
    connection.close()
    return path


def test_an_answer_is_judged_by_its_rows_and_not_by_its_text():
    gold = "SELECT name FROM authors WHERE born > 1950"
    verdict = _verdict(gold, "SELECT a.name FROM authors a WHERE NOT a.born <= 1950 ORDER BY a.name")
    assert verdict.success and verdict.score == 1.0 and verdict.evidence["changed_copy"] is True
    wrong = _verdict(gold, "SELECT name FROM authors WHERE born > 1960")
    assert wrong.score == 0.0 and wrong.evidence["wrong_on"] == "database"


def test_a_database_that_cannot_be_read_any_more_gives_no_score(tmp_path: Path) -> None:
    path, gold = _database(tmp_path / "lost.sqlite"), "SELECT Name FROM Artist"
    assert play(SPEC, _task(gold, str(path)), [call("answer", sql=gold)]).verdict().success
    episode = play(SPEC, _task(gold, str(path)), [call("answer", sql="SELECT ArtistId FROM Artist")])
    path.write_bytes(b"x" * 9999)
    databases._local.connections.clear()
    verdict = episode.verdict()
    assert verdict.score is None and "not a database" in str(verdict.error)


def test_constants_read_off_a_result_fail_on_the_changed_copy():
    gold = "SELECT COUNT(*) FROM books WHERE genre = 'crime'"
    number = worlds.database("library-0").rows(gold)[0][0]
    verdict = _verdict(gold, f"SELECT {number}")
    assert verdict.score == 0.0 and verdict.evidence["wrong_on"] == "changed"
    assert verdict.evidence["database"]["rows"] == 1  # right on the database itself


def test_order_counts_only_where_it_is_asked_for():
    backwards = "SELECT name, born FROM authors ORDER BY born, name"
    gold = "SELECT name, born FROM authors ORDER BY born DESC, name"
    assert _verdict(gold, backwards).success is False
    assert _verdict(gold, backwards, ordered=False).success is True
    assert _verdict("SELECT name, born FROM authors", backwards).success is True


def test_a_changed_copy_keeps_the_schema_references_and_values():
    database = worlds.database("store-3")
    other = database.changed(0)
    assert [table.columns for table in other.schema.tables] == [table.columns for table in database.schema.tables]
    for column in ("category", "price"):
        here, there = ({row[0] for row in d.rows(f"SELECT {column} FROM products")} for d in (database, other))
        assert there <= here
    pairs = [set(d.rows("SELECT id, order_id FROM order_items")) for d in (database, other)]
    assert pairs[1] < pairs[0]  # rows are gone; references of the others stand
    assert database.rows("SELECT id, name FROM products") != other.rows("SELECT id, name FROM products")
    assert other.changed(1).name != other.name and database.changed(0) is other


def test_a_query_that_does_not_run_is_not_handed_in():
    episode = play(SPEC, _task("SELECT COUNT(*) FROM books"), [])
    result = episode.step(call("answer", sql="SELECT COUNT(*) FROM bookz"))
    assert result.fault == "tool_error" and "no such table: bookz" in result.observation and not result.terminated
    assert "Did you mean 'books'?" in episode.step(call("describe", table="bokos")).observation
    assert episode.step(call("answer", sql="SELECT COUNT(*) FROM books")).terminated
    assert episode.verdict().success


def test_generated_tasks_are_solved_by_the_expert_and_share_nothing_between_splits():
    seen: dict[str, set[str]] = {}
    for split in ("train", "validation", "test"):
        tasks = list(itertools.islice(SPEC.tasks(split), 150))
        assert len(tasks) == 150 and share(SPEC, tasks[::9]) == 1.0
        seen[split] = {task.args["database"] for task in tasks}
    assert not seen["train"] & seen["test"] and not seen["validation"] & (seen["train"] | seen["test"])
    train = list(itertools.islice(SPEC.tasks("train"), 60))
    assert share(SPEC, train, 0.8) < share(SPEC, train, 0.3) < 1.0


def test_every_generated_question_tells_constants_from_queries():
    for task in itertools.islice(SPEC.tasks("test"), 40):
        database = worlds.database(task.args["database"])
        other = discriminating(database, task.args["gold"])
        assert other is not None and set(other.rows(task.args["gold"])) != set(database.rows(task.args["gold"]))


def test_a_snapshot_of_a_database_that_is_written_shares_nothing():
    spec = EnvSpec.load("sql", {"writable": True})
    task = _task("UPDATE members SET joined = joined + 5 WHERE city = 'Arlen'")
    one = play(spec, task, [call("query", sql="UPDATE members SET joined = joined + 5 WHERE city = 'Arlen'")])
    state, twin = one.fingerprint(), one.copy()
    twin.step(call("query", sql="DELETE FROM loans"))
    assert one.fingerprint() == state != twin.fingerprint()
    for episode in (one, twin):
        episode.step(call("answer", sql="done"))
    assert one.verdict().success and one.verdict().verifier == "sql.contents"
    assert twin.verdict().success is False and twin.verdict().evidence["differences"] > 0
    assert worlds.database("library-0").rows("SELECT COUNT(*) FROM loans")[0][0] > 0
    writing = [t for t in itertools.islice(spec.tasks("train"), 400) if not t.args["gold"].startswith("SELECT")]
    assert len(writing) > 10 and share(spec, writing[:10]) == 1.0


def test_a_file_without_questions_gets_generated_ones(tmp_path: Path):
    spec = EnvSpec.load("sql", {"database": str(_database(tmp_path / "shop.sqlite"))})
    tasks = {split: list(spec.tasks(split)) for split in ("train", "validation", "test")}
    assert sum(map(len, tasks.values())) > 10 and share(spec, tasks["train"]) == 1.0
    assert any('"Order"' in task.args["gold"] for task in tasks["train"])


def test_a_questions_file(tmp_path: Path):
    path = _database(tmp_path / "shop.sqlite")
    rows = [
        {"question": "Names?", "query": "SELECT Name FROM Artist ORDER BY Name;", "split": "train"},
        {"question": "How many?", "gold": "SELECT COUNT(*) FROM Artist", "split": "dev", "task_id": "many"},
        {"question": "Above 10?", "sql": 'SELECT Id FROM "Order" WHERE Amount > 10'},
        {"question": "Above 20?", "sql": 'SELECT Id FROM "Order" WHERE Amount > 20'},
    ]
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    spec = EnvSpec.load("sql", {"database": str(path), "questions": str(file)})
    tasks = {split: list(spec.tasks(split)) for split in ("train", "validation", "test")}
    assert tasks["train"][0].args["ordered"] is True and tasks["validation"][0].task_id == "many"
    (together,) = [ts for ts in ([t for t in ts if "Above" in t.args["question"]] for ts in tasks.values()) if ts]
    assert len(together) == 2  # questions that differ in a constant stay together
    assert share(spec, [task for ts in tasks.values() for task in ts]) == 1.0


def _spider(folder: Path) -> Path:
    for name in ("music", "trade"):
        (folder / "database" / name).mkdir(parents=True)
        _database(folder / "database" / name / f"{name}.sqlite")
    (folder / "tables.json").write_text(json.dumps([{"db_id": "music"}, {"db_id": "trade"}]))
    row = {"question": "How many?", "query": "SELECT COUNT(*) FROM Artist", "query_toks": [], "sql": {"where": []}}
    (folder / "train_spider.json").write_text(json.dumps([{**row, "db_id": "music"}]))
    (folder / "dev.json").write_text(json.dumps([{**row, "db_id": "trade"}] * 3))
    return folder


def test_a_folder_of_spider(tmp_path: Path):
    spec = EnvSpec.load("sql", {"database": str(_spider(tmp_path / "spider"))})
    tasks = {split: list(spec.tasks(split)) for split in ("train", "validation", "test")}
    assert len(tasks["train"]) == 1 and len(tasks["validation"]) + len(tasks["test"]) == 3
    assert share(spec, [task for ts in tasks.values() for task in ts]) == 1.0


def _broken(tmp_path: Path, what: str) -> dict[str, str]:
    good, folder = str(_database(tmp_path / "good.sqlite")), tmp_path / "spider"
    file = tmp_path / "q.json"
    file.write_text({"text": "{", "shape": '{"a": 1}', "field": '[{"question": "How many?"}]'}.get(what, "[]"))
    if what in ("text", "shape", "field", "empty"):
        return {"database": good, "questions": str(file)}
    if what == "no database":
        file.write_text("these are no pages of a database")
        return {"database": str(file)}
    if what == "cut":
        (tmp_path / "cut.sqlite").write_bytes(Path(good).read_bytes()[:700])
        return {"database": str(tmp_path / "cut.sqlite")}
    if what == "questions alone":
        return {"questions": str(file)}
    if what == "folder":
        folder.mkdir()
    elif what == "unknown database":
        _spider(folder)
        (folder / "dev.json").write_text(json.dumps([{"question": "?", "query": "SELECT 1", "db_id": "musik"}]))
    elif what == "missing database":
        _spider(folder)
        (folder / "database" / "music" / "music.sqlite").unlink()
    return {"database": str(folder)}


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("text", "is no JSON"), ("shape", "has no text question"), ("field", "has no text gold or query"),
        ("empty", "has no row"), ("no database", "no SQLite database"), ("cut", "cannot be read"),
        ("questions alone", "without env.database"), ("folder", "no folder 'database'"), ("path", "there is no file"),
        ("unknown database", "has no database 'musik'"), ("missing database", "there is no file"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_before_anything_runs(tmp_path: Path, what: str, told: str):
    with pytest.raises(ConfigError, match=told):
        list(EnvSpec.load("sql", args := _broken(tmp_path, what)).tasks("train")) and SQL(**args)
        SQL(**args)


@pytest.mark.skipif(not CHINOOK.is_file(), reason=f"there is no {CHINOOK} (SHARED_DATA names another folder)")
def test_a_real_database():
    spec = EnvSpec.load("sql", {"database": str(CHINOOK)})
    tasks = list(spec.tasks("train"))
    assert len(tasks) > 100 and share(spec, tasks[::20]) == 1.0
    verdict, messages = expert(spec, tasks[0])
    assert verdict.success and "references" in "".join(str(m["content"]) for m in messages)
