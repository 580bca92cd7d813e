"""The closing table of a reward model's training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.report.calibrate import share
from offline_agent.report.closing import closing, table
from offline_agent.runner.next_steps import command

if TYPE_CHECKING:
    from rich.console import RenderableType


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the table: agreement with the verdicts, on the tasks trained on and on those held out."""
    parts = {"trained on": "train", "held out, before": "held_out_before", "held out": "held_out"}
    rows = [(f"{name}: {summary[key]['judged']}", *_cells(summary[key])) for name, key in parts.items()]
    columns = (">tasks", ">accuracy", ">over tasks", ">kappa", ">false positives", ">majority")
    keys = ["source=RUN_DIR", "judge=reward_model", f"judge.path={summary['model']}"]
    after = f"Written to {summary['model']}\nNext:\n  {command('calibrate', keys)}"
    return closing(table("train_reward", rows, ("trajectories", *columns)), after)


def _cells(part: Mapping[str, Any]) -> tuple[str, ...]:
    over = part["accuracy_over_tasks"]
    clustered = "–" if over["mean"] is None else f"{over['mean']:.0%} [{over['low']:.0%}, {over['high']:.0%}]"
    kappa = "–" if part["kappa"] is None else f"{part['kappa']:.2f}"
    shares = [share(part["agreement"]), clustered, kappa, share(part["false_positives"])]
    return str(part["tasks"]), *shares, f"{part['majority']:.0%}"
