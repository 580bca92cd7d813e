"""Environments that only the thread that made them may use: a to-do list in SQLite, with `sqlite3.connect` as it is."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from typing import Any


class Todo:
    """Finish the items that are asked for; the list is a database, which cannot be copied."""

    closed_elsewhere: list[str] = []

    @classmethod
    def tasks(cls, split: str) -> Iterable[dict[str, Any]]:
        start = {"train": 0, "validation": 20, "test": 40}[split]
        return ({"code": f"{number * 7 % 64:03o}"} for number in range(start, start + 12))

    def __enter__(self) -> Todo:
        self.connection = sqlite3.connect(":memory:")
        self.thread = threading.get_ident()
        return self

    def __exit__(self, *_: object) -> None:
        if self.thread != threading.get_ident():
            self.closed_elsewhere.append(threading.current_thread().name)
        self.connection.close()

    def reset(self, code: str) -> str:
        self.code, self.terminated = code, False
        self.connection.execute("drop table if exists items")
        self.connection.execute("create table items (position integer primary key, number integer)")
        return f"Finish the items {code}."

    def door(self, number: int) -> str:
        """Finish an item.

        Args:
            number: Which item, 0 to 9.
        """
        self.connection.execute("insert into items (number) values (?)", (number,))
        self.terminated = len(self._done()) == 3
        return f"Finished: {self._done()}"

    def get_reward(self) -> float:
        return sum(a == b for a, b in zip(self._done(), self.code, strict=False)) / 3

    @property
    def fingerprint(self) -> str:
        return self._done()

    def _done(self) -> str:
        return "".join(str(row[0]) for row in self.connection.execute("select number from items order by position"))


class CopiedTodo(Todo):
    """The list, copied by SQLite's own backup."""

    def __deepcopy__(self, memo: dict[int, Any]) -> CopiedTodo:
        self.connection.commit()  # a backup waits for the end of a transaction
        twin = type(self)().__enter__()
        self.connection.backup(twin.connection)
        twin.code, twin.terminated = self.code, self.terminated
        return twin


class RestlessTodo(CopiedTodo):
    """It says that any thread may use it, which is not so."""

    one_thread = False
