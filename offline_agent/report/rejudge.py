"""The figures of a `rejudge` run: collected while it runs, kept in summary.json, shown as a table at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.rejudge import RejudgeConfig
from offline_agent.preferences.revaluation import Revalued
from offline_agent.report.closing import figures_table, pairs_written
from offline_agent.report.findings import commonest
from offline_agent.report.mining import Figures
from offline_agent.runner.next_steps import command
from offline_agent.runner.terminal import copyable
from offline_agent.search.tree import SearchTree

if TYPE_CHECKING:
    from rich.console import RenderableType


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
        self._trees = self._judged = self._unscored = self._raised = self._lowered = self._first = 0

    def take(self, tree: SearchTree, found: Revalued) -> None:
        """Take one tree."""
        self._tasks.add(tree.task.task_id)
        self._trees += 1
        self._judged += found.judged
        self._unscored += len(found.unscored)
        self._raised += found.raised
        self._lowered += found.lowered
        self._first += found.first

    def summary(self, config: RejudgeConfig) -> dict[str, Any]:
        """Return everything as JSON."""
        mined = self.mined
        return {
            "seed": config.seed,
            "resumed": mined.resumed,
            "source": str(self._source),
            "judge": config.judge.name,
            "tasks": len(self._tasks),
            "trees": self._trees,
            "judged": self._judged,
            "unscored": self._unscored,
            "raised": self._raised,
            "lowered": self._lowered,
            "judged_first": self._first,
            "success": {"attempts": mined.plain.value, "tasks": mined.best.value},
            **mined.mined("trees", mined.totals["quarantined_trees"]),
        }  # fmt: skip


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the closing table."""
    from rich.console import Group

    table = figures_table(f"rejudge: {summary['source']} by {summary['judge']}", _table_rows(summary))
    where = copyable(
        f"\nWritten to {path}; {summary['source']} is as it was\n"
        f"{pairs_written(path)}"
        f"  filtered/     {summary['filtered']} verified successes for fine-tuning\n"
        f"  trajectories/ {summary['trajectories']} with the new verdicts, and in these the earlier ones\n"
    )
    return Group(table, where, copyable("\n".join(_next(summary, path))))


def _table_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    note = f"{summary['judged_first']:,} of them had no verdict; {summary['unscored']:,} more could not be judged"
    yield "judged", f"{summary['judged']:,}", note
    yield "now a success", f"{summary['raised']:,}", "were a failure"
    yield "now a failure", f"{summary['lowered']:,}", "were a success"
    share = summary["success"]["tasks"]
    note = f"in {summary['trees']:,} trees" + ("" if share is None else f"; {share:.0%} have a success")
    yield "tasks", f"{summary['tasks']:,}", f"{note}; {summary['tasks_with_pairs']:,} with pairs"
    kinds = ", ".join(f"{name} {count:,}" for name, count in summary["pairs"].items())
    yield "pairs", f"{summary['pairs_total']:,}", kinds
    yield "filtered trajectories", f"{summary['filtered']:,}", f"of {summary['trajectories']:,} trajectories"
    refused = ", ".join(f"{name} {count:,}" for name, count in summary["refused"].items() if count)
    yield "refused", f"{sum(summary['refused'].values()):,}", refused + commonest(summary["refusal_reasons"])


def _next(summary: Mapping[str, Any], path: Path) -> Iterator[str]:
    """Yield the lines on how to go on."""
    if not summary["pairs_total"]:
        yield "No pair: no task has a success and a failure by this judge that differ after common messages"
        return
    yield "Next:"
    yield f"  {command('inspect', [str(path), 'pair=0'])}"
    kinds = f"data.kinds=[{','.join(summary['pairs'])}]"
    yield f"  {command('train_dpo', [f'data.runs=[{path}]', kinds])}"
