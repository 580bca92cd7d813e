"""Files of tasks in the field's own formats: JSON lines, perhaps compressed, divided into splits."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError, DataError
from offline_agent.store.files import blocks, unpacked

Read = Callable[[Mapping[str, Any], str], dict[str, Any]]
"""Turns a row into a task, given its identifier for messages; raises KeyError where a column is missing, ValueError
where a value cannot be used."""


def rows(path: str, key: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of each line of a file.

    Args:
        path: A file of JSON lines, `.gz` or not; or one JSON list.
        key: The configuration key, for messages.

    Raises:
        ConfigError: It cannot be read, or is no such file.
    """
    try:
        with unpacked(Path(path)) as file:
            text = b"".join(blocks(file, path, Path(path).stat().st_size)).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeError, DataError) as error:
        raise ConfigError(f"{key}: cannot read {path}: {error}") from error
    if text.lstrip().startswith("["):
        listed = _json(text, key, path)
        lines = list(enumerate(listed, 1)) if isinstance(listed, list) else []
    else:
        numbered = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        lines = [(n, _json(line, key, f"{path}, line {n}")) for n, line in numbered]
    for number, row in lines:
        if not isinstance(row, dict):
            raise ConfigError(f"{key}: {path}, line {number}: got {type(row).__name__}, must be a JSON object")
        yield number, row


def tasks_of(path: str, key: str, read: Read, formats: str) -> list[dict[str, Any]]:
    """Return the tasks of a file.

    Args:
        path, key: See `rows`.
        read: Turns a row into a task.
        formats: The formats that it knows, in words, for messages.

    Raises:
        ConfigError: A row is not of such a format; or there is none.
    """
    found = []
    for number, row in rows(path, key):
        try:
            found.append(read(row, f"row {number}"))
        except (LookupError, ValueError, TypeError) as error:
            detail = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            has = ", ".join(map(str, list(row)[:8])) or "none"
            raise ConfigError(
                f"{key}: {path}, line {number}: {detail}; its columns: {has}. Allowed: rows of {formats}"
            ) from error
    if not found:
        raise ConfigError(f"{key}: {path} has no row; allowed: rows of {formats}")
    return found


def divided(
    split: str, path: str | None, test_path: str | None, read: Callable[[str, str], list[dict[str, Any]]]
) -> list[dict[str, Any]] | None:
    """Return the tasks of a split from files; None where the split has none of its own.

    A file is divided by a hash of each task's `task_id`: eight tenths train, one validation, one test. With a file of
    test tasks, the last tenth of the other is validation too.

    Args:
        split: `train`, `validation` or `test`.
        path: The file that is divided.
        test_path: A file that is the whole test split.
        read: Returns the tasks of a file, given its path and the configuration key.
    """
    if split == "test" and test_path is not None:
        return read(test_path, "env.test_path")
    if path is None:
        return None
    names = {"train": range(8), "validation": range(8, 9 + (test_path is not None)), "test": range(9, 10)}
    return [task for task in read(path, "env.path") if _tenth(str(task["task_id"])) in names[split]]


def _tenth(task_id: str) -> int:
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4], "big") % 10


def _json(text: str, key: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{key}: {where} is no JSON: {error}; allowed: JSON lines, .gz or not") from error
