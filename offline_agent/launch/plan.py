"""Expected cost of a run: the command on a few tasks (updates, rounds), measured and multiplied.

The probe runs in a process and a directory of its own, which is removed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offline_agent.config.build_prefs import RunConfig
from offline_agent.errors import ConfigError, TrainingError
from offline_agent.launch import torchrun
from offline_agent.launch.probes import COMMANDS, Figures, Probe
from offline_agent.launch.stages import Stage, run_stage
from offline_agent.report.closing import table


def plan(pipeline: str, config: RunConfig, say: Callable[[str], None]) -> Any:
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
    title = f"{pipeline}: expected, from a probe of {config.plan.probe} tasks, or {config.plan.updates} updates"
    rows = [(name.replace("_", " "), str(figure), figure.note) for name, figure in figures.items()]
    return table(title, rows, ("what", ">expected", "note"))


def _run(pipeline: str, small: Any, folder: Path, say: Callable[[str], None]) -> Probe:
    tracking = small.tracking.model_copy(update={"uri": None})
    update = {"run_dir": str(folder / pipeline), "tracking": tracking, "launcher": "local"}
    say(f"{pipeline}: a probe of it is run first, in {folder}, which is removed")
    folder.mkdir(parents=True)
    try:
        stage = Stage(pipeline, pipeline, small.model_copy(update=update))
        return Probe(stage.path, run_stage(stage, say, "give the same command again"))
    except TrainingError as error:
        told = str(error).partition("\nAll of it:")[0]  # the folder of the log is removed
        raise TrainingError(f"the probe of the plan failed, and nothing was begun: {told}") from error
