"""Run directories of a command: opening and refusing."""

from __future__ import annotations

import itertools
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.loading import free_keys, growing_keys
from offline_agent.errors import ConfigError
from offline_agent.outgoing import masked
from offline_agent.runner.pipeline import WRONG, C, Command, Facts, P
from offline_agent.runner.terminal import say
from offline_agent.store.manifest import Growth

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
    say(f"All keys: python -m offline_agent.pipelines.{command.name} --help")
    return WRONG
