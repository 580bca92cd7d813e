"""Run directories of a command: opening, the configuration that one keeps, what a stopped run leaves in it."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.keys import free_keys, growing_keys
from offline_agent.config.loading import load
from offline_agent.errors import ConfigError, DataError, did_you_mean
from offline_agent.outgoing import MASK, masked
from offline_agent.runner.pipeline import WRONG, C, Command, Facts, P
from offline_agent.runner.terminal import is_file, say
from offline_agent.store.manifest import Growth, read_manifest

if TYPE_CHECKING:
    from offline_agent.store.run_directory import RunDirectory


def open_run(command: Command[C, P], config: C, facts: Facts) -> tuple[C, RunDirectory]:
    """Open the run directory; return it with the configuration that names it. Raises as `RunDirectory.open`."""
    from offline_agent.sandbox.trust import fall, report_fall
    from offline_agent.store.provenance import sources
    from offline_agent.store.run_directory import RunDirectory

    config = config.model_copy(update={"run_dir": str(place(command.name, config.run_dir))})
    run = RunDirectory.open(
        config.run_dir or "",
        config=config.resolved(),
        facts={
            "seeds": {"run": config.seed}, "sources": sources(config.resolved()), **fall(),
            **masked(dict(facts.manifest)),
        },
        command=command.name,
        free=(*free_keys(command.config), *facts.free),
        growth=Growth(growing_keys(command.config, command.name), facts.fixed, facts.first_tasks),
    )
    say(f"{command.name}: {'going on with' if run.resumed else 'writing to'} {run.path}")
    for warning in run.warnings:
        say(f"{command.name}: {warning}")
    report_fall(lambda text: say(f"{command.name}: {text}"))
    return config, run


def place(name: str, run_dir: str | None) -> Path:
    """Return the given run directory, or a new name under `runs/`."""
    if run_dir is not None:
        return Path(run_dir)
    stamp = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    names = itertools.chain([stamp], (f"{stamp}-{number}" for number in itertools.count(2)))
    return next(path for path in (Path("runs") / one for one in names) if not path.exists())


def refuse(command: Command[Any, Any], error: ConfigError) -> int:
    """Print every fault of a request, and return the exit status."""
    count = len(error.faults)
    say(f"{command.name}: the request is wrong ({count} fault{'s' * (count > 1)}), nothing was written:")
    for fault in error.faults:
        say(f"  {fault}")
    say(f"All keys: python -m offline_agent.pipelines.{command.name} --help all")
    return WRONG


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


def saved(run_dir: Path) -> str:
    """Return a sentence on what a run directory holds now; it reads names and sizes alone."""
    there: list[tuple[int, str]] = [
        (len(list(run_dir.glob("trees/*.json.gz"))), "finished trees"),
        (len(list(run_dir.glob("checkpoints/checkpoint-*"))), "checkpoints"),
        (len(list(run_dir.glob("iteration-*/*/summary.json"))), "finished stages"),
    ]
    parts = [f"{count:,} {what}" for count, what in there if count]
    if tables := sorted({path.parent.name for path in run_dir.glob("*/*.parquet")}):
        parts.append(", ".join(tables))
    if size := sum(path.stat().st_size for path in run_dir.glob("events/*.jsonl")):
        parts.append(f"the event log of what was under way ({size / 1e6:.1f} MB)")
    return f"Saved in {run_dir}: {'; '.join(parts) or 'the configuration; nothing was finished'}."
