"""Domains in tau2's JSON form: a folder with db.json, tasks.json, and perhaps policy.md and split_tasks.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.seeding import derive_seed

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Folder:
    """A domain.

    Attributes:
        database: Table → key → record.
        policy: The written policy; None where there is none.
        tasks: Split → its tasks, as `reset`'s arguments.
    """

    database: Mapping[str, Any]
    policy: str | None
    tasks: Mapping[str, tuple[dict[str, Any], ...]]


def tasks(split: str, domain: str) -> Iterator[dict[str, Any]]:
    """Yield a domain's tasks of a split; raises ConfigError as `folder`."""
    return iter(folder(domain).tasks[split])


@lru_cache(maxsize=8)
def folder(domain: str) -> Folder:
    """Return a domain.

    Raises:
        ConfigError: A file is missing or has another shape.
    """
    path = Path(domain)
    if not path.is_dir():
        raise ConfigError(f"env.domain: there is no folder {domain!r}; it holds db.json and tasks.json")
    database, listed = _json(path / "db.json"), _json(path / "tasks.json")
    if not isinstance(database, dict) or not all(isinstance(table, dict) for table in database.values()):
        raise ConfigError(f"env.domain: {str(path / 'db.json')!r} must map tables to records by their key")
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"env.domain: {str(path / 'tasks.json')!r} must be a list of tasks")
    rows = {}
    for number, task in enumerate(listed):
        row = _row(task, number, domain, str(path / "tasks.json"))
        rows[str(task.get("id", number))] = row
    policy = path / "policy.md"
    splits = _splits(path / "split_tasks.json", rows)
    return Folder(database, policy.read_text(encoding="utf-8") if policy.is_file() else None, splits)


def call_of(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's name and arguments, without what a table of rows has added."""
    return {"name": str(action["name"]), "arguments": without_none(action.get("arguments") or {})}


def without_none(value: Any) -> Any:
    """Return nested dicts without keys that are None: Arrow gives each row of a column every key of all rows."""
    if isinstance(value, Mapping):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    return [without_none(inner) for inner in value] if isinstance(value, list | tuple) else value


def _row(task: Any, number: int, domain: str, path: str) -> dict[str, Any]:
    criteria = task.get("evaluation_criteria") if isinstance(task, dict) else None
    scenario = task.get("user_scenario") if isinstance(task, dict) else None
    if not isinstance(criteria, dict) or not isinstance(scenario, dict):
        has = ", ".join(task) if isinstance(task, dict) else type(task).__name__
        raise ConfigError(
            f"env.domain: {path!r}, task {number}: needs user_scenario and evaluation_criteria, has {has}"
        )
    actions = criteria.get("actions") or []
    if not all(isinstance(action, dict) and isinstance(action.get("name"), str) for action in actions):
        raise ConfigError(f"env.domain: {path!r}, task {number}: its actions must be dicts with name and arguments")
    if task.get("initial_state"):
        raise ConfigError(f"env.domain: {path!r}, task {number}: has an initial_state, which is not supported")
    return {
        "task_id": f"{task.get('id', number)}",
        "scenario": {"instructions": without_none(scenario.get("instructions") or {})},
        "actions": [call_of(action) for action in actions if action.get("requestor") in (None, "assistant")],
        "communicate": [str(fact) for fact in criteria.get("communicate_info") or []],
        "basis": [str(part) for part in criteria.get("reward_basis") or ("DB", "COMMUNICATE")],
        "domain": domain,
    }


def _splits(path: Path, rows: Mapping[str, dict[str, Any]]) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the file's splits; an eighth of the training tasks are for validation where it names none."""
    found: dict[str, list[str]] = {split: [] for split in SPLITS}
    given = _json(path) if path.is_file() else None
    if given is None:
        for name in rows:
            lot = derive_seed(0, "service split", name) % 8
            found["validation" if lot == 0 else "test" if lot == 1 else "train"].append(name)
    else:
        if not isinstance(given, dict) or not {"train", "test"} <= set(given):
            raise ConfigError(f"env.domain: {str(path)!r} must map train and test to ids of tasks")
        unknown = [name for split in ("train", "test") for name in given[split] if str(name) not in rows]
        if unknown:
            raise ConfigError(f"env.domain: {str(path)!r} names {unknown[0]!r}, which is no task")
        found["test"] = [str(name) for name in given["test"]]
        held_out = [str(name) for name in given.get("validation", ())]
        for name in map(str, given["train"]):
            lot = not given.get("validation") and derive_seed(0, "service split", name) % 8 == 0
            found["validation" if lot else "train"].append(name)
        found["validation"] += held_out
    return {split: tuple(rows[name] for name in names) for split, names in found.items()}


def _json(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(f"env.domain: there is no file {str(path)!r}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"env.domain: {str(path)!r} cannot be read as JSON: {error}") from error
