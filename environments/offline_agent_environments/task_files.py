"""Files that rows of tasks refer to, and splits that rows name themselves; see `offline_agent.envs.task_files`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.store.files import read_text


def json_file(path: Path, key: str) -> Any:
    """Return the content of a JSON file; of a file named *.jsonl the list of its lines.

    Args:
        path: The file.
        key: The configuration key, for messages.

    Raises:
        ConfigError: It is not there, or is no such file.
    """
    if not path.is_file():
        raise ConfigError(f"{key}: there is no file {str(path)!r}")
    try:
        text = read_text(path)
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        return json.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: {str(path)!r} cannot be read as JSON: {error}") from error


def given_split(row: Mapping[str, Any]) -> str | None:
    """Return the split that a row names itself, `dev` for `validation` too; None where it names none.

    Raises:
        ValueError: There is no such split.
    """
    given = row.get("split")
    name = {None: None, "dev": "validation"}.get(given, str(given))
    if name not in (None, "train", "validation", "test"):
        raise ValueError(f"it has the split {given!r}; allowed: train, validation, test")
    return name
