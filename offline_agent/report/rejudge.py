"""The figures of a `rejudge` run: collected while it runs, kept in summary.json, shown as a table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.rejudge import RejudgeConfig
from offline_agent.preferences.revaluation import Revalued
from offline_agent.report.closing import closing, commonest, counted, pairs_written, percent, table
from offline_agent.report.mining import Figures
from offline_agent.runner.next_steps import command
from offline_agent.search.tree import SearchTree

if TYPE_CHECKING:
    from rich.console import RenderableType

_COUNTS = ("trees", "judged", "unscored", "raised", "lowered", "judged_first")


class RejudgeFigures:
    """Counts what another judge said.

    Args:
        mined: The counts of trees and tables.
        source: The run that is judged.
    """

    def __init__(self, mined: Figures, source: Path) -> None:
        self.mined = mined
        self._source = source
        self._tasks: set[str] = set()
        self._counts: Counter[str] = Counter()

    def take(self, tree: SearchTree, found: Revalued) -> None:
        """Take one tree."""
        self._tasks.add(tree.task.task_id)
        self._counts.update(
            trees=1, judged=found.judged, unscored=len(found.unscored), raised=found.raised, lowered=found.lowered,
            judged_first=found.first,
        )  # fmt: skip

    def summary(self, config: RejudgeConfig) -> dict[str, Any]:
        """Return everything as JSON."""
        mined = self.mined
        return {
            "seed": config.seed,
            "resumed": mined.resumed,
            "source": str(self._source),
            "judge": config.judge.name,
            "tasks": len(self._tasks),
            **{name: self._counts[name] for name in _COUNTS},
            "success": {"attempts": mined.mean("plain"), "tasks": mined.mean("best")},
            **mined.mined("trees", mined.totals["quarantined_trees"]),
        }  # fmt: skip


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the closing table."""
    if summary["pairs_total"]:
        kinds = f"data.kinds=[{','.join(summary['pairs'])}]"
        after = ["Next:", f"  {command('inspect', [str(path), 'pair=0'])}"]
        after.append(f"  {command('train_dpo', [f'data.runs=[{path}]', kinds])}")
    else:
        after = ["No pair: no task has a success and a failure by this judge that differ after common messages"]
    return closing(
        table(f"rejudge: {summary['source']} by {summary['judge']}", _rows(summary)),
        f"\nWritten to {path}; {summary['source']} is as it was\n"
        f"{pairs_written(path)}"
        f"  filtered/     {summary['filtered']} verified successes for fine-tuning\n"
        f"  trajectories/ {summary['trajectories']} with the new verdicts, and in these the earlier ones\n",
        *after,
    )


def _rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    note = f"{summary['judged_first']:,} of them had no verdict; {summary['unscored']:,} more could not be judged"
    yield "judged", f"{summary['judged']:,}", note
    yield "now a success", f"{summary['raised']:,}", "were a failure"
    yield "now a failure", f"{summary['lowered']:,}", "were a success"
    share = summary["success"]["tasks"]
    note = f"in {summary['trees']:,} trees" + ("" if share is None else f"; {percent(share)} have a success")
    yield "tasks", f"{summary['tasks']:,}", f"{note}; {summary['tasks_with_pairs']:,} with pairs"
    yield "pairs", f"{summary['pairs_total']:,}", counted(summary["pairs"])
    yield "filtered trajectories", f"{summary['filtered']:,}", f"of {summary['trajectories']:,} trajectories"
    refused = summary["refused"]
    yield "refused", f"{sum(refused.values()):,}", counted(refused) + commonest(summary["refusal_reasons"])
