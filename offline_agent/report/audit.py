"""The closing table of an audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.envs.audit.texts import NO_GOLD
from offline_agent.report.closing import closing, table

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHOWN = 400  # characters of evidence in the table; audit.json has all


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
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
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
    return ", ".join(_figures(result["measured"]))


def _figures(measured: Mapping[str, Any]) -> Iterator[str]:
    for name, value in measured.items():
        if isinstance(value, Mapping):
            yield f"{name} ({', '.join(_figures(value))})"
        else:
            yield f"{name} {value}"
