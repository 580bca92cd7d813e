"""The environment: four tools on a SQLite database; the verifier compares rows on it and on a changed copy."""

from __future__ import annotations

import hashlib
import random
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from offline_agent.envs.base import Environment, ToolError, twin
from offline_agent.errors import did_you_mean
from offline_agent.judges.verifiers import Unscorable, goal_state
from offline_agent.records import Message, Verdict, call_message
from offline_agent_environments.sql import sources
from offline_agent_environments.sql.database import LIMITS, Database, contents, discriminating, guarded_copy, shown
from offline_agent_environments.sql.guarded_sqlite import HostFault, LimitExceeded, Row, run
from offline_agent_environments.sql.judge import ERRORS, compared, ordering

_MISTAKES: tuple[tuple[str, str | Callable[[re.Match[str], random.Random], str]], ...] = (
    (r" > ", " < "),
    (r" < ", " > "),
    (r"\bDESC\b", "ASC"),
    (r"\bMAX\b", "MIN"),
    (r"\bAVG\b", "SUM"),
    (r"\bSUM\b", "COUNT"),
    (r"\bNOT EXISTS\b", "EXISTS"),
    (r" WHERE [^()]*$", ""),
    (r" AND .*$", ""),
    (r"\bLIMIT (\d+)$", lambda found, rng: f"LIMIT {int(found[1]) + rng.choice((-1, 1))}"),
    (r"(?<=[<>=] )(\d+)\b", lambda found, rng: str(int(found[1]) + rng.choice((-7, 5, 11)))),
    (r"\bCOUNT\(\*\)", "COUNT(*) + 1"),
    (r"\bFROM (\w+)", lambda found, rng: f"FROM {found[1]}s"),  # a table that there is not: an error
)


def next_turn(
    tables: Sequence[str], task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
) -> Message:
    """Return the next assistant message.

    Args:
        tables: Names of the database's tables.
        task: `reset`'s arguments.
        messages: The conversation so far.
        rng: The source of carelessness.
        noise: Probability, in [0, 1], that what it writes next is wrong, and half of it that it skips a look.
    """
    gold = str(task["gold"])
    made = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    names = [call["name"] for call in made]
    if "list_tables" not in names and rng.random() >= noise / 2:
        return call_message("list_tables", {})
    described = {str(call["arguments"].get("table")) for call in made if call["name"] == "describe"}
    used = [name for name in tables if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", gold)]
    missing = [name for name in used if name not in described]
    if missing and "query" not in names and rng.random() >= noise / 2:
        return call_message("describe", {"table": missing[0]})
    writes = not gold.lstrip().lower().startswith(("select", "with"))
    text = careless(gold, rng) if rng.random() < noise else gold
    if "query" not in names or (noise > 0 and names[-1] == "query" and rng.random() < noise / 3):
        return call_message("query", {"sql": text})
    return call_message("answer", {"sql": "done" if writes else text})


def careless(gold: str, rng: random.Random) -> str:
    """Return the query with one usual mistake in it."""
    fitting = [(pattern, change) for pattern, change in _MISTAKES if re.search(pattern, gold)]
    pattern, change = rng.choice(fitting) if fitting else (r"$", " LIMIT 1")
    written = change if isinstance(change, str) else lambda found: change(found, rng)
    return re.sub(pattern, written, gold, count=1)


SHOWN_ROWS = 30
"""Rows of a result that the policy is shown."""


class SQL(Environment):
    """Questions about a SQLite database, answered by a query.

    The query that is handed in has to give the rows of the right one, in its order where the question asks for one, on
    the database and on a changed copy of it: constants read off a result fail there. Queries can only read, within
    limits of instructions, time, memory, rows and size (`sql.guarded_sqlite`).

    Args:
        database: A SQLite file, a script (.sql) that makes one, or a folder in Spider's format; None = the embedded
            databases.
        questions: JSON or JSONL with `question` and `gold` (perhaps `db_id`, `ordered`, `split`); None = the folder's,
            or questions generated from the database's schema.
        writable: `query` may insert, update and delete rows in the episode's own copy, and there are tasks that ask
            for it; they are judged by the contents of all tables.
    """

    name = "sql"
    system_prompt = (
        "You answer questions about a SQLite database. Look at its tables with list_tables() and describe(table), try"
        " queries with query(sql), then hand in one query whose result is the answer with answer(sql): just the columns"
        " that the question asks for, in its order. It is run on other rows, too, so write conditions, not values read"
        " off a result. For a task that changes rows, change them with query(sql), then call answer('done')."
        " Answering without a call gives up."
    )
    one_thread = False
    max_steps = 12
    hindsight = "a query that gives other rows than were asked for answers a question that has no wording"
    _answers_differ: ClassVar[bool] = False

    def __init__(self, database: str | None = None, questions: str | None = None, writable: bool = False) -> None:
        sources.check(database, questions)
        self._writable = writable
        self._own: sqlite3.Connection | None = None
        self._gold: str | None = None
        self._answer: str | None = None

    @classmethod
    def tasks(
        cls, split: str, database: str | None = None, questions: str | None = None, writable: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield the questions of a split; no database and no pattern of generated questions is in two splits.

        Raises:
            ConfigError: A path is wrong, or a file has another shape.
        """
        return sources.tasks(split, database, questions, writable)

    def reset(self, database: str, question: str, gold: str, ordered: bool | None = None, **_: Any) -> str:
        """Start a question and return it.

        Args:
            database: Name of an embedded database, or a path.
            question: The question.
            gold: A right query.
            ordered: Whether the order of rows counts; None = where the right query has an ORDER BY.
            **_: Other columns of a data set. Not used.
        """
        self._database: Database = sources.find(database)
        self._gold, self._ordered = gold, ordering(gold) if ordered is None else bool(ordered)
        self._writes = not gold.lstrip().lower().startswith(("select", "with", "values"))
        if self._own is not None:
            self._own.close()
        self._own = self._database.private() if self._writable or self._writes else None
        self._answer, self.terminated = None, False
        return question

    def list_tables(self) -> str:
        """List the tables of the database."""
        tables = self._now.schema.tables
        return "\n".join(f"{table.name} ({', '.join(column.name for column in table.columns)})" for table in tables)

    def describe(self, table: str) -> str:
        """Describe a table: its columns, their types, keys, and its first rows.

        Args:
            table: Its name, as list_tables names it.
        """
        schema = self._now.schema
        found = schema.find(table)
        if found is None:
            near = did_you_mean(table, schema.names)
            raise ToolError(f"there is no table {table[:80]!r}; allowed: {', '.join(schema.names)}.{near}")
        name = found.name.replace('"', '""')
        columns, first, more = self._run(f'select * from "{name}"', 3)
        return f"{found.described()}\n{shown(columns, first, more, 40)}"

    def query(self, sql: str) -> str:
        """Run a query and show the first rows of its result.

        Args:
            sql: One statement, such as "SELECT COUNT(*) FROM books".
        """
        self._ended()
        columns, found, more = self._run(sql, SHOWN_ROWS)
        return shown(columns, found, more) if columns else "done"

    def answer(self, sql: str) -> str:
        """Hand in the query whose result answers the question; this ends the task.

        Args:
            sql: One query; 'done' where the task was to change rows.
        """
        self._ended()
        if not self._writes:
            self._run(sql, None)  # a query that does not run is not handed in
        self._answer, self.terminated = sql, True
        return "handed in"

    def get_reward(self) -> Verdict:
        """Return 1 where the answer's rows are right on the database and on a changed copy, else 0."""
        name, version, gold = "sql.rows", self.version, self._gold
        if gold is None:
            raise RuntimeError("sql: get_reward before reset")
        if self._answer is None:
            return Verdict(0.0, False, name, version, {"answer": None})
        if self._writes:
            return self._judge_contents(gold)
        evidence: dict[str, Any] = {"answer": self._answer, "ordered": self._ordered}
        try:
            other = discriminating(self._now, gold)
            wanted = {"database": self._now.rows(gold)} | ({} if other is None else {"changed": other.rows(gold)})
        except (*ERRORS, LimitExceeded, HostFault) as error:
            return Verdict(None, None, name, version, evidence, f"the right query does not run: {error}")
        evidence["changed_copy"] = other is not None
        for where, right in wanted.items():
            there = self._now if where == "database" or other is None else other
            try:
                _, success, evidence[where] = compared(there.run, self._answer, gold, right, self._ordered)
            except Unscorable as error:
                return Verdict(None, None, name, version, evidence, str(error))
            if not success:
                return Verdict(0.0, False, name, version, {**evidence, "wrong_on": where})
        return Verdict(1.0, True, name, version, evidence)

    @property
    def fingerprint(self) -> str:
        """A hash of the question, the answer and, where rows may change, of the tables."""
        state: list[Any] = [self._now.name, self._gold, self._answer, self.terminated]
        if self._own is not None:
            state.append(contents(self._own, self._now.schema))
        return hashlib.blake2b(repr(state).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the scripted analyst's next call; see `next_turn`."""
        return next_turn(sources.find(str(task["database"])).schema.names, task, messages, rng, noise)

    def __deepcopy__(self, memo: dict[int, Any]) -> SQL:
        other = twin(self)  # immutable, or shared and only read
        if self._own is not None:
            other._own = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._own.backup(other._own)
            guarded_copy(other._own, self._database.most_pages)
        return other

    @property
    def _now(self) -> Database:
        if self._gold is None:
            raise RuntimeError("sql: reset the environment first")
        return self._database

    def _ended(self) -> None:
        if self.terminated:
            raise ToolError("the task is over")

    def _run(self, sql: str, first: int | None) -> tuple[tuple[str, ...], list[Row], bool]:
        try:
            if self._own is not None:
                return run(self._own, sql, LIMITS, first)
            return self._now.run(sql, first)
        except LimitExceeded as error:
            raise ToolError(f"the query was stopped: it {error}", "limit") from error
        except ERRORS as error:
            raise ToolError(str(error)) from error

    def _judge_contents(self, gold: str) -> Verdict:
        """Return the verdict on changed rows: every table has the rows that the right statement leaves."""
        assert self._own is not None  # opened by reset for such a task
        right = self._now.private()
        try:
            run(right, gold, LIMITS)
            goal = contents(right, self._now.schema)
        except (*ERRORS, LimitExceeded, HostFault) as error:
            return Verdict(None, None, "sql.contents", self.version, error=f"the right statement does not run: {error}")
        finally:
            right.close()
        verdict = goal_state(contents(self._own, self._now.schema), goal)
        return Verdict(verdict.score, verdict.success, "sql.contents", self.version, verdict.evidence, verdict.error)
