"""The closing table of a calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.runner.terminal import copyable

if TYPE_CHECKING:
    from rich.console import RenderableType


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the tables of the judge and of the comparator, and the biases that the intervals prove."""
    from rich.console import Group
    from rich.table import Table

    parts: list[Any] = []
    if (judged := summary["pointwise"]) is not None:
        table = Table(title=f"{summary['judge']} against the verifier")
        for column in JUDGE_COLUMNS:
            table.add_column(column, justify="left" if column == "trajectories" else "right")
        for row in judge_rows(judged, summary["length"]):
            table.add_row(*row)
        parts.append(table)
        if judged["unscored"]:
            parts.append(copyable(f"{judged['unscored']} had no score: {'; '.join(judged['errors'])}"))
    if (compared := summary["pairwise"]) is not None:
        table = Table(title=f"{summary['compare']} against the verifier, {compared['pairs']} pairs in both orders")
        table.add_column("comparisons")
        table.add_column("share", justify="right")
        for row in comparator_rows(compared):
            table.add_row(*row)
        parts.append(table)
    told = summary["biases"] or ["no bias by length or position is proven at this confidence"]
    return Group(*parts, copyable("\n".join([*told, f"Written to {path / 'calibration.json'}"])))


JUDGE_COLUMNS = ("trajectories", "judged", "agreement", "kappa", "false positives", "false negatives")
"""Headings of `judge_rows`."""


def judge_rows(judged: Mapping[str, Any], unit: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a judge's table: all trajectories, then each class of length."""
    yield "all", *_cells(judged)
    for part in judged["by_length"]:
        yield f"{part['length']['from']:g} to {part['length']['to']:g} {unit}", *_cells(part)


def _cells(part: Mapping[str, Any]) -> tuple[str, ...]:
    kappa = part["kappa"]
    shares = [share(part[name]) for name in ("agreement", "false_positives", "false_negatives")]
    return f"{part['judged']:,}", shares[0], "–" if kappa is None else f"{kappa:.2f}", shares[1], shares[2]


def comparator_rows(compared: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of a comparator's table: a name and a share with its interval."""
    yield "right", share(compared["accuracy"])
    yield "right where the success stood first", share(compared["by_position"]["success_first"])
    yield "right where the success stood second", share(compared["by_position"]["success_second"])
    yield "right where the success is longer", share(compared["by_length"]["success_longer"])
    yield "right where the success is shorter", share(compared["by_length"]["success_shorter"])
    yield "chose the first", share(compared["chose_first"])
    yield "pairs about which the order decided", share(compared["swayed_by_order"])
    yield "undecided", f"{compared['undecided']} of {compared['comparisons']}"


def share(found: Mapping[str, Any]) -> str:
    """Return a share with its interval as text."""
    if found["value"] is None:
        return "–"
    return f"{found['value']:.0%} [{found['low']:.0%}, {found['high']:.0%}] of {found['of']}"
