"""The stored configuration of a run that is gone on with by `run_dir` alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from offline_agent.errors import ConfigError
from offline_agent.outgoing import MASK
from offline_agent.runner.pipeline import C, Command
from offline_agent.runner.terminal import is_file


def stored_config(command: Command[C, Any], overrides: Sequence[str]) -> C | None:
    """Return the configuration of the run that a request of `run_dir=RUN_DIR` alone goes on with; else None.

    Args:
        command: The command.
        overrides: The `key=value` arguments.

    Raises:
        ConfigError: The run is of this command, and its configuration cannot be used without further keys.
    """
    if len(overrides) != 1 or not overrides[0].startswith("run_dir="):
        return None
    run_dir = overrides[0].removeprefix("run_dir=")
    file = Path(run_dir) / "manifest.json"
    if not run_dir or not is_file(file):
        return None
    try:
        manifest = json.loads(file.read_bytes())
        if manifest["command"] != command.name:
            return None
        data = {**manifest["config"], "run_dir": run_dir}
    except (OSError, ValueError, TypeError, KeyError):
        return None  # opening the run says what is wrong with it
    if MASK in json.dumps(data):
        raise ConfigError(
            f"run_dir: the configuration in {file} is without its secrets (***), so run_dir alone is not enough: give "
            "the keys of the first command again"
        )
    try:
        return command.config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(
            f"run_dir: the configuration in {file} is of another version of the program and cannot be read "
            f"({'; '.join(one['msg'] for one in error.errors())}); give the keys of the first command again"
        ) from error
