"""Database tasks of AgentBench (Liu et al., ICLR 2024), `env=agentbench:db env.checkout=PATH`; `:os` is a module apart.

Tasks, answers and hashes are those of the user's checkout (THUDM/AgentBench at 578c5e9f: `data/dbbench/*.jsonl`); the
rules are those of `src/server/tasks/dbbench/`, written anew. Tables are SQLite's in place of MySQL's.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from offline_agent.envs.base import SPLITS, Environment, ToolError, twin
from offline_agent.envs.task_files import divided, tasks_of
from offline_agent.errors import ConfigError
from offline_agent.records import Message, Verdict, call_message
from offline_agent_environments.adapters import agentbench_os
from offline_agent_environments.sql.database import LIMITS, guarded_copy
from offline_agent_environments.sql.env import careless
from offline_agent_environments.sql.guarded_sqlite import LimitExceeded, run
from offline_agent_environments.sql.judge import ERRORS

_WRITES = ("INSERT", "UPDATE", "DELETE")
_SHOWN = 800  # characters of a result
_PAGES = 2000  # of a table that is written
_TEXT = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\""
_NUMBER = r"([<>=]\s*)(-?\d+(?:\.\d+)?)(?![\w.])"
_TOKEN = re.compile(rf"(?is){_NUMBER}|`[^`]*`|{_TEXT}|(?<![\w.])(?!0x|\d+e\d)\d+[a-z_]\w*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "%": "\\%", "_": "\\_"}
_NOTHING = frozenset(("none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity", ""))


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of a checkout's tasks; see `envs.base.environment_class`."""
    data = Path(str(args.get("checkout"))) / "data"
    needed = {"db": data / "dbbench" / "standard.jsonl", "os": data / "os_interaction" / "data" / "dev.json"}
    if rest not in needed or not needed[rest].is_file():
        raise ConfigError(
            f"env: got agentbench:{rest}, env.checkout={args.get('checkout')!r}; allowed: agentbench:db, agentbench:os,"
            " and the folder of a checkout of https://github.com/THUDM/AgentBench, with its folder data"
        )
    if rest == "os":
        return agentbench_os.tasks_class(data.parent)
    folder = data / "dbbench"
    files = str(folder / "dev.jsonl"), str(folder / "standard.jsonl")
    splits = {split: divided(split, *files, _tasks) or [] for split in SPLITS}
    rows = {row["task_id"]: row for some in splits.values() for row in some}
    version = hashlib.blake2b(repr(rows).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return type("DBBench", (_DBBench,), {"_rows": rows, "_splits": splits, "version": version, "name": "agentbench_db"})


def _tasks(path: str, _: str) -> list[dict[str, Any]]:
    """Return the tasks of a file; raises ConfigError where it is none of AgentBench's."""

    def task(row: Mapping[str, Any], number: str) -> dict[str, Any]:
        table, writes = row["table"]["table_info"], row["type"][0] in _WRITES
        hashes = re.findall("[0-9a-f]{32}", row["answer_md5"]) if writes else []
        if writes and not hashes:
            raise ValueError("its answer_md5 has no hash")
        return {
            "task_id": f"{Path(path).stem}-{int(number.removeprefix('row ')) - 1}",
            "question": f"{row['description']}\n{row['add_description']}",
            "writes": writes,
            "table": _quoted(row["table"]["table_name"]),
            "columns": [f"{_quoted(column['name'])} text collate nocase" for column in table["columns"]],
            "rows": [[str(value) for value in values] for values in table["rows"]],
            "goal": hashes[0] if writes else list(map(str, row["label"])),
            "statement": row["label"][0] if writes else row["sql"]["query"],
        }

    return tasks_of(path, "env.checkout", task, "AgentBench's data/dbbench")


class _DBBench(Environment):
    """One table, a question about it, or a change that is to be made; `adapt` makes the class.

    Args:
        checkout: The folder of a checkout of AgentBench.
    """

    system_prompt = (
        "You operate an SQLite database, in MySQL's notation, to answer a question or to make a change."
        " execute_sql(query) runs one statement and shows its result; pragma table_info(NAME) shows the columns. Then"
        " call commit_final_answer(answers) with the exact values alone, each a text; after a change with anything."
    )
    one_thread = False
    max_steps = 15
    hindsight = "a wrong answer, or another change, has no wording"
    _answers_differ: ClassVar[bool] = False
    _rows: ClassVar[Mapping[str, Mapping[str, Any]]]
    _splits: ClassVar[Mapping[str, list[dict[str, Any]]]]

    def __init__(self, checkout: str) -> None:
        self._task: Mapping[str, Any] = {}
        self._answers: tuple[str, ...] | None = None

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        """Yield the ids of a split's tasks: the standard set is the test split, the development set is divided."""
        yield from ({"task_id": row["task_id"]} for row in cls._splits[split])

    def reset(self, task_id: str) -> str:
        """Make a task's table and return what is asked.

        Args:
            task_id: The id of the task: its file and the number of its line, from 0.
        """
        self._task = task = self._rows[task_id]
        self._answers, self.terminated = None, False
        self._database = _opened()
        self._database.execute(f"create table {task['table']} ({', '.join(task['columns'])})")
        marks = ", ".join("?" * len(task["columns"]))
        self._database.executemany(f"insert into {task['table']} values ({marks})", task["rows"])
        guarded_copy(self._database, _PAGES)
        return str(task["question"])

    def execute_sql(self, query: str) -> str:
        """Run one SQL statement and show its result.

        Args:
            query: The statement.
        """
        try:
            text = str(run(self._database, in_sqlite(query), LIMITS)[1])
        except (*ERRORS, LimitExceeded) as error:
            raise ToolError(str(error)) from error
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}[TRUNCATED]"

    def commit_final_answer(self, answers: list[str]) -> str:
        """Hand in the answer; this ends the task.

        Args:
            answers: The values, such as ["Vienna"].
        """
        self._answers, self.terminated = tuple(answers), True
        return "handed in"

    def get_reward(self) -> Verdict:
        """Return 1 where the answer, or the hash of the changed table, is AgentBench's; nothing handed in earns 0."""
        goal, writes = self._task["goal"], self._task["writes"]
        reached = table_hash(self._contents()) if writes else self._answers
        success = self._answers is not None and (reached == goal if writes else same_answers(self._answers, goal))
        return Verdict(float(success), success, "agentbench.db", self.version, {"reached": reached, "goal": goal})

    @property
    def fingerprint(self) -> str:
        """A hash of the task, the table and the answer."""
        state = (self._task, self._contents(), self._answers)
        return hashlib.blake2b(repr(state).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @classmethod
    def demonstrate(cls, task: Mapping[str, Any], messages: Sequence[Message], rng: Random, noise: float) -> Message:
        """Return the reference statement, then the right answer; with noise a mistake in the one, or another answer."""
        row, wrong = cls._rows[task["task_id"]], rng.random() < noise
        if not any(message.get("tool_calls") for message in messages):
            statement = row["statement"]
            return call_message("execute_sql", {"query": careless(statement, rng) if wrong else statement})
        return call_message("commit_final_answer", {"answers": ["done"] if row["writes"] or wrong else row["goal"]})

    def __deepcopy__(self, memo: dict[int, Any]) -> _DBBench:
        other = twin(self)
        if self._task:
            other._database = _opened()
            self._database.backup(other._database)
            guarded_copy(other._database, _PAGES)
        return other

    def _contents(self) -> list[tuple[Any, ...]]:
        return self._database.execute(f"select * from {self._task['table']}").fetchall()


def _opened() -> sqlite3.Connection:
    """Return an empty database in memory."""
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def in_sqlite(statement: str) -> str:
    """Return a statement with MySQL's texts (also in `"`, with backslashes), numbers and names as SQLite's.

    Double quotes mean a text, as in MySQL without ANSI_QUOTES.
    """

    def written(token: re.Match[str]) -> str:
        """Return a part of the statement as SQLite has it."""
        text = token[0]
        if token[1]:  # a column of texts is compared with a number as a number, as in MySQL
            return f"{token[1]}cast({token[2]} as numeric)"
        if text[0] not in "'\"":
            return text if text[0] == "`" else f"`{text}`"
        inner = re.compile(rf"(?s)\\(.)|{text[0]}{text[0]}")
        plain = inner.sub(lambda found: _ESCAPES.get(found[1], found[1]) if found[1] else text[0], text[1:-1])
        return "'{}'".format(plain.replace("'", "''"))

    return _TOKEN.sub(written, statement)


def table_hash(rows: Sequence[Sequence[Any]]) -> str:
    """Return what AgentBench's query of MySQL gives for a table: md5 of its rows' hashes, 5 characters of each, sorted.

    MySQL cuts the joined hashes after 1,024 characters (`group_concat_max_len`).
    """
    joined = (",".join(str(value) for value in row if value is not None) for row in rows)
    hashes = ",".join(sorted(hashlib.md5(text.encode()).hexdigest()[:5] for text in joined))
    return hashlib.md5(hashes[:1024].encode()).hexdigest()


def same_answers(given: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether answers are the same by AgentBench's rule: numbers to 0.01, one to one; else the sets of texts.

    Quotes around, `%` at the end and commas are left out; nothing, `none`, `null` and the like are 0.
    """
    one, other = (list(map(_clean, some)) for some in (given, wanted))
    try:
        numbers, left = list(map(float, one)), list(map(float, other))
    except ValueError:
        return set(one) == set(other)
    for number in numbers:
        near = next((value for value in left if abs(value - number) <= 0.01), None)
        if near is None:
            return False
        left.remove(near)
    return not left


def _clean(value: str) -> str:
    text = value.strip().strip("'\"").strip()
    if text.endswith("%"):
        return text[:-1].strip()
    if not text.startswith("[") and not text.endswith("]"):
        text = text.replace(",", "")
    return "0" if text.lower() in _NOTHING else text
