"""Memory-saving list of tasks, and the hash of a task set."""

from __future__ import annotations

import hashlib
import json
import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from offline_agent.records import Task


class TaskList(Sequence[Task]):
    """Tasks in order, stored as bytes: about a fifth of the memory of the objects. Each access makes a new task.

    Args:
        tasks: Read once.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._bytes = bytearray()
        self._ends = array("Q", [0])
        for task in tasks:
            self._bytes += pickle.dumps((task.task_id, task.split, dict(task.args)), pickle.HIGHEST_PROTOCOL)
            self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self._ends) - 1

    @overload
    def __getitem__(self, at: int) -> Task: ...
    @overload
    def __getitem__(self, at: slice) -> list[Task]: ...
    def __getitem__(self, at: int | slice) -> Task | list[Task]:
        """Return a task, or the list of tasks of a slice."""
        if isinstance(at, slice):
            return [self._at(number) for number in range(*at.indices(len(self)))]
        number = at + len(self) if at < 0 else at
        if not 0 <= number < len(self):
            raise IndexError(at)
        return self._at(number)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks."""
        return map(self._at, range(len(self)))

    def _at(self, number: int) -> Task:
        return Task(*pickle.loads(self._bytes[self._ends[number] : self._ends[number + 1]]))


def hash_tasks(tasks: Iterable[Task]) -> str:
    """Return a hash of tasks, 32 hex digits: that of `hash_json` of all [task_id, split, args], built step by step."""
    total = hashlib.blake2b(b"[", digest_size=16)
    for number, task in enumerate(tasks):
        entry = [task.task_id, task.split, dict(task.args)]
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)
        total.update(("," * (number > 0) + text).encode("ascii"))
    total.update(b"]")
    return total.hexdigest()
