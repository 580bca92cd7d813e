"""Tasks for the servers of `mcp_servers.py`, and for one whose state has a handle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def tasks(split: str) -> Iterator[dict[str, Any]]:
    start = {"train": 2, "validation": 12, "test": 22}[split]
    return ({"goal": goal, "instruction": f"Count to {goal}."} for goal in range(start, start + 3))


def verify(task: dict[str, Any], call: Any) -> float:
    return float(call("count", n=0) == f"{task['goal']} so far")


def opened(task: dict[str, Any], call: Any) -> tuple[str, dict[str, Any]]:
    return task["instruction"], {"counter": call("open_counter")}


def kept(task: dict[str, Any], folder: Any) -> float:
    return float((folder / "mark").exists())
