from __future__ import annotations

from offline_agent.records import Task
from offline_agent.runner.components import hash_tasks
from offline_agent.store.provenance import hash_json

TASKS = [
    Task("a", "train", {"x": 1, "of": (1, [2.5, None], {"k": "ü\ud800"})}),
    Task("b", "train", {}),
    Task("c", "test", {"z": True, "a": {3: "int keys stay"}}),
]


def test_the_hash_of_tasks_is_that_of_their_json() -> None:
    for tasks in (TASKS, TASKS[:1], []):
        assert hash_tasks(tasks) == hash_json([[task.task_id, task.split, dict(task.args)] for task in tasks])
