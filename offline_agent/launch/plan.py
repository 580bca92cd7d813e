"""Expected cost of a run: the command on a few tasks (updates, rounds), measured and multiplied.

The probe runs in a process and a directory of its own, which is removed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offline_agent.config.build_prefs import RunConfig
from offline_agent.errors import ConfigError, TrainingError
from offline_agent.launch import torchrun
from offline_agent.launch.probes import COMMANDS, Figures, Probe
from offline_agent.launch.stages import Stage, run_stage

Say = Callable[[str], None]


def plan(pipeline: str, config: RunConfig, say: Say) -> Any:
    """Return the table of the expected cost of a run; no file is left.

    Raises:
        ConfigError: Nothing is known about the cost of the command, or torchrun started it.
        TrainingError: The probe failed.
    """
    if pipeline not in COMMANDS:
        raise ConfigError(f"--plan: nothing is known about the cost of {pipeline}; known: {', '.join(COMMANDS)}")
    if torchrun.count() > 1:
        raise ConfigError("plan: the processes of torchrun cannot probe; give --plan without torchrun")
    smaller, figures = COMMANDS[pipeline]
    with tempfile.TemporaryDirectory(prefix="offline-agent-plan-") as folder:
        return show(figures(config, _run(pipeline, smaller(config), Path(folder) / "probe", say)), pipeline, config)


def show(figures: Figures, pipeline: str, config: RunConfig) -> Any:
    """Return figures as a table."""
    from rich.table import Table

    source = f"from a probe of {config.plan.probe} tasks, or {config.plan.updates} updates"
    out = Table(title=f"{pipeline}: expected, {source}", title_justify="left")
    out.add_column("what")
    out.add_column("expected", justify="right")
    out.add_column("note")
    for name, figure in figures.items():
        out.add_row(name.replace("_", " "), str(figure), figure.note)
    return out


def _run(pipeline: str, small: Any, folder: Path, say: Say) -> Probe:
    tracking = small.tracking.model_copy(update={"uri": None})
    update = {"run_dir": str(folder / pipeline), "tracking": tracking, "launcher": "local"}
    say(f"{pipeline}: a probe of it is run first, in {folder}, which is removed")
    folder.mkdir(parents=True)
    try:
        stage = Stage(pipeline, pipeline, small.model_copy(update=update))
        summary = run_stage(stage, say, "give the same command again")
    except TrainingError as error:
        told = str(error).partition("\nAll of it:")[0]  # the folder of the log is removed
        raise TrainingError(f"the probe of the plan failed, and nothing was begun: {told}") from error
    return Probe(folder / pipeline, summary, _memory())


def _memory() -> float | None:
    """Return the largest resident memory of an ended child process, bytes; None = not known."""
    import resource

    size = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return float(size if sys.platform == "darwin" else size * 1024) or None
