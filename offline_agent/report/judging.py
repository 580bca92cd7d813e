"""Closing tables of the commands that judge: `audit` and `rejudge`, with the counts of the last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.judging import RejudgeConfig
from offline_agent.envs.checks.texts import NO_GOLD
from offline_agent.preferences.revaluation import Revalued
from offline_agent.report.closing import closing, interval, mined_rows, percent, table, tables_written
from offline_agent.report.mining import Figures
from offline_agent.runner.next_steps import command
from offline_agent.search.tree import SearchTree

if TYPE_CHECKING:
    from rich.console import RenderableType

_EVIDENCE = 400  # characters of evidence in the table; audit.json has all


def show_audit(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the table: one row for each check, with the evidence or the figures."""
    rows = [(result["check_id"], result["status"], evidence(result)) for result in summary["results"]]
    title = f"audit of {summary['environment']['name']}: {summary['verdict']}"
    told = ", ".join(f"{count} {status}" for status, count in summary["counts"].items() if count)
    lines = [f"{told}. All figures: {path / 'audit.json'}; docs/audit.md says what each check is"]
    unmade = [result for result in summary["results"] if result["evidence"].startswith(NO_GOLD)]
    if unmade:
        made = f"{len(unmade)} leak check{'s were' if len(unmade) > 1 else ' was'} NOT made"
        lines.append(f"{made}: {unmade[0]['evidence']}")
    return closing(table(title, rows, ("!check", "status", "evidence")), *lines)


def evidence(result: Mapping[str, Any]) -> str:
    """Return what a finding rests on, short."""
    text = result["evidence"]
    if text:
        return text if len(text) <= _EVIDENCE else f"{text[:_EVIDENCE]} …"
    return ", ".join(_figures(result["measured"]))


def _figures(measured: Mapping[str, Any]) -> Iterator[str]:
    for name, value in measured.items():
        if isinstance(value, Mapping):
            yield f"{name} ({', '.join(_figures(value))})"
        else:
            yield f"{name} {value}"


def share(found: Mapping[str, Any]) -> str:
    """Return a share with its interval as text."""
    return interval(found) if found["value"] is None else f"{interval(found)} of {found['of']}"


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


def show_rejudge(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the closing table."""
    if summary["pairs_total"]:
        kinds = f"data.kinds=[{','.join(summary['pairs'])}]"
        after = ["Next:", f"  {command('inspect', [str(path), 'pair=0'])}"]
        after.append(f"  {command('train_dpo', [f'data.runs=[{path}]', kinds])}")
    else:
        after = ["No pair: no task has a success and a failure by this judge that differ after common messages"]
    return closing(
        table(f"rejudge: {summary['source']} by {summary['judge']}", _rejudge_rows(summary)),
        f"\nWritten to {path}; {summary['source']} is as it was\n"
        + tables_written(summary, path, "with the new verdicts, and in these the earlier ones"),
        *after,
    )


def _rejudge_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    note = f"{summary['judged_first']:,} of them had no verdict; {summary['unscored']:,} more could not be judged"
    yield "judged", f"{summary['judged']:,}", note
    yield "now a success", f"{summary['raised']:,}", "were a failure"
    yield "now a failure", f"{summary['lowered']:,}", "were a success"
    share = summary["success"]["tasks"]
    note = f"in {summary['trees']:,} trees" + ("" if share is None else f"; {percent(share)} have a success")
    yield "tasks", f"{summary['tasks']:,}", f"{note}; {summary['tasks_with_pairs']:,} with pairs"
    yield from mined_rows(summary)
