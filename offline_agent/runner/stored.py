"""The stored configuration of a run that is gone on with by `run_dir`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offline_agent.config.loading import load
from offline_agent.errors import ConfigError, DataError, did_you_mean
from offline_agent.outgoing import MASK
from offline_agent.runner.pipeline import C, Command
from offline_agent.runner.terminal import is_file
from offline_agent.store.manifest import read_manifest


def stored_config(command: Command[C, Any], overrides: Sequence[str]) -> C | None:
    """Return the configuration of the run that `run_dir` holds, with the keys that are given; None where it holds none.

    Args:
        command: The command.
        overrides: The `key=value` arguments.

    Raises:
        ConfigError: `run_dir` is given alone and holds no run of this command; or its run's configuration cannot be
            used without further keys.
    """
    run_dir = next((text.removeprefix("run_dir=") for text in overrides if text.startswith("run_dir=")), "")
    file = Path(run_dir) / "manifest.json"
    alone = len(overrides) == 1 and bool(run_dir)
    if not run_dir or not is_file(file):
        if alone:
            load(command.config, overrides=overrides)  # says what no run_dir may be
            raise ConfigError(_no_run(command, Path(run_dir)))
        return None
    try:
        manifest = read_manifest(Path(run_dir))
        name, data = manifest["command"], dict(manifest["config"])
    except (DataError, ValueError, TypeError, KeyError):
        return None  # opening the run says what is wrong with it
    if name != command.name:
        if alone:
            raise ConfigError(
                f"run_dir: {run_dir} holds a run of {name}, not of {command.name}. To go on with it: "
                f"python -m offline_agent.pipelines.{name} {shlex.quote(overrides[0])}"
            )
        return None
    secrets = f"run_dir: the configuration in {file} is without its secrets (***): give the keys that hold them again"
    try:
        config = load(command.config, overrides=overrides, stored=data)
    except ConfigError as error:
        older = f"run_dir: where {file} is of another version of the program, name another run_dir"
        raise ConfigError([*error.faults, secrets if _masked(data) else older]) from error
    if _masked(config.model_dump(mode="json")):
        raise ConfigError(secrets)
    return config


def _no_run(command: Command[Any, Any], run_dir: Path) -> str:
    """Return the fault of a `run_dir` that is given alone and holds no run."""
    beside = [path.parent.name for path in run_dir.parent.glob("*/manifest.json")]
    key = "env=shop" if "env" in command.config.model_fields else "seed=0"
    return (
        f"run_dir: {run_dir} holds no run (it has no manifest.json), and run_dir alone goes on with a run."
        f"{did_you_mean(run_dir.name, beside)} To begin one there, give another key too, such as {key}"
    )


def _masked(value: Any) -> bool:
    """Return whether a secret was masked anywhere in a configuration."""
    return MASK in json.dumps(value)
