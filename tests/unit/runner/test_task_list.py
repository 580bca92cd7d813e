from __future__ import annotations

import sys

import pytest

from offline_agent.records import Task
from offline_agent.runner.components import TaskList, hash_tasks
from offline_agent.store.provenance import hash_json

TASKS = [
    Task("a", "train", {"x": 1, "of": (1, [2.5, None], {"k": "ü\ud800"})}),
    Task("b", "train", {}),
    Task("c", "test", {"z": True, "a": {3: "int keys stay"}}),
]


def test_a_task_list_is_a_list_of_tasks() -> None:
    tasks = TaskList(iter(TASKS))
    assert list(tasks) == TASKS and list(tasks) == TASKS and len(tasks) == 3
    assert [tasks[i] for i in (0, -1, 1)] == [TASKS[i] for i in (0, -1, 1)]
    assert tasks[1:] == TASKS[1:] and tasks[::-1] == TASKS[::-1] and tasks[5:] == []
    assert TASKS[1] in tasks and tasks[0].args["of"][0] == 1 and isinstance(tasks[0].args["of"], tuple)
    assert not TaskList([])
    for at in (3, -4):
        with pytest.raises(IndexError):
            tasks[at]


def test_the_hash_of_tasks_is_that_of_their_json() -> None:
    for tasks in (TASKS, TASKS[:1], []):
        assert hash_tasks(tasks) == hash_json([[task.task_id, task.split, dict(task.args)] for task in tasks])


def test_a_task_takes_little_more_than_its_text() -> None:
    tasks = TaskList(Task(f"big-{n:06}", "train", {"instruction": f"{n:06}" + "x" * 94}) for n in range(20_000))
    size = sys.getsizeof(tasks._bytes) + sys.getsizeof(tasks._ends)
    assert size < 20_000 * 250
