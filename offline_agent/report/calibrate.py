"""The closing table of a calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.report.closing import closing, table

if TYPE_CHECKING:
    from rich.console import RenderableType


_JUDGE = ("trajectories", ">judged", ">agreement", ">kappa", ">false positives", ">false negatives")


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the tables of the judge and of the comparator, and the biases that the intervals prove."""
    parts: list[Any] = []
    if (judged := summary["pointwise"]) is not None:
        rows = judge_rows(judged, summary["length"])
        parts.append(table(f"{summary['judge']} against the verifier", rows, _JUDGE))
        if judged["unscored"]:
            parts.append(f"{judged['unscored']} had no score: {'; '.join(judged['errors'])}")
    if (compared := summary["pairwise"]) is not None:
        title = f"{summary['compare']} against the verifier, {compared['pairs']} pairs in both orders"
        parts.append(table(title, comparator_rows(compared), ("comparisons", ">share")))
    told = summary["biases"] or ["no bias by length or position is proven at this confidence"]
    return closing(*parts, *told, f"Written to {path / 'calibration.json'}")


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
