"""The closing table of a reward model's training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.report.calibrate import share
from offline_agent.runner.next_steps import command
from offline_agent.runner.terminal import copyable

if TYPE_CHECKING:
    from rich.console import RenderableType


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the table: agreement with the verdicts, on the tasks trained on and on those held out."""
    from rich.console import Group
    from rich.table import Table

    table = Table(title="train_reward")
    for column in ("trajectories", "tasks", "accuracy", "over tasks", "kappa", "false positives", "majority"):
        table.add_column(column, justify="right")
    table.columns[0].justify = "left"
    for name, part in (("trained on", summary["train"]), ("held out, before", summary["held_out_before"]),
                       ("held out", summary["held_out"])):  # fmt: skip
        table.add_row(f"{name}: {part['judged']}", str(part["tasks"]), *_cells(part))
    keys = ["source=RUN_DIR", "judge=reward_model", f"judge.path={summary['model']}"]
    told = f"Written to {summary['model']}\nNext:\n  {command('calibrate', keys)}"
    return Group(table, copyable(told))


def _cells(part: Mapping[str, Any]) -> tuple[str, ...]:
    over = part["accuracy_over_tasks"]
    clustered = "–" if over["mean"] is None else f"{over['mean']:.0%} [{over['low']:.0%}, {over['high']:.0%}]"
    kappa = "–" if part["kappa"] is None else f"{part['kappa']:.2f}"
    return share(part["agreement"]), clustered, kappa, share(part["false_positives"]), f"{part['majority']:.0%}"
