"""The closing table of `evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

Figures = Mapping[str, Any]


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the closing table, from summary.json."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    modes, other = summary["modes"], summary.get("against", {}).get("modes", {})
    table = Table(title=f"evaluate: {summary['policy']} in {summary['environment']}, {summary['tasks']} tasks "
                        f"({summary['split']})")  # fmt: skip
    table.add_column("what")
    columns: list[Figures] = []
    for mode, figures in modes.items():
        table.add_column(_title(mode, figures), justify="right")
        columns.append(figures)
        if mode in other:
            table.add_column(f"against, {mode}", justify="right")
            columns.append(other[mode])
    for name, cells in _rows(columns):
        table.add_row(name, *cells)
    return Group(table, Text("\n" + "\n".join([*_comparisons(summary), *_notes(summary), "", *_where(summary, path)])))


def _title(mode: str, figures: Figures) -> str:
    each = figures["attempts"] // max(1, figures["tasks"])
    return f"{mode} (×{each})" if each > 1 else mode


def _rows(columns: list[Figures]) -> Iterator[tuple[str, list[str]]]:
    yield "success", [_interval(figures["success"]) for figures in columns]
    yield "reward", [_interval(figures["reward"], percent=False) for figures in columns]
    for name, key in (("pass@", "pass_at"), ("pass^", "pass_hat")):
        for k in sorted({int(k) for figures in columns for k in figures[key]} - {1}):
            yield f"{name}{k}", [_percent(figures[key].get(str(k), {}).get("mean")) for figures in columns]
    yield "steps", [_number(figures["steps"]) for figures in columns]
    for name in ("invalid", "refused", "repeated"):
        yield f"{name} calls", [_percent(figures[f"{name}_call_rate"], 1) for figures in columns]
    yield "cut by max_steps", [_percent(figures["truncated_rate"], 1) for figures in columns]
    if any(figures["unscored"] for figures in columns):
        yield "unscored attempts", [str(figures["unscored"]) for figures in columns]
        yield "success, unscored = failed", [_percent(figures["success_if_unscored_failed"], 1) for figures in columns]
    yield "tokens an attempt", [f"{figures['tokens']['generated_per_attempt']:,.0f}" for figures in columns]


def _comparisons(summary: Mapping[str, Any]) -> Iterator[str]:
    for mode, compared in summary.get("comparison", {}).items():
        yield f"Against {_name(summary['against'])}, {mode}: {_difference(compared)}"
    for mode, reason in summary.get("against", {}).get("modes_not_compared", {}).items():
        yield f"Not compared, {mode}: {reason}"
    gain = summary.get("gain_of_search")
    if gain is not None:
        yield f"Search at test time over the policy alone ({gain['over']}): {_difference(gain)}"


def _difference(compared: Mapping[str, Any]) -> str:
    difference = compared["difference"]
    if difference["mean"] is None:
        return str(compared["error"])
    low, high = (f"{100 * difference[side]:+.1f}" for side in ("low", "high"))
    p_value = compared["p_value"]
    shown = f"p = {p_value:.3f}" if p_value >= 0.001 else "p < 0.001"
    return (
        f"{100 * difference['mean']:+.1f} points of success [{low}, {high}], {shown}, paired over "
        f"{compared['tasks']} tasks ({compared['tasks_that_differ']} differ)"
    )


def _notes(summary: Mapping[str, Any]) -> Iterator[str]:
    for mode, figures in summary["modes"].items():
        if "test_time" in figures:
            yield f"{mode}: {figures['test_time']['in_words']}"
    protocol = summary["protocol"]
    environment, scaffold = protocol["environment"], protocol["scaffold"]
    prompts = scaffold["prompts"]
    prompt = prompts[0]["system_prompt_hash"] if len(prompts) == 1 else f"{len(prompts)} different"
    judges = ", ".join(f"{one['verifier']} (version {one['version']})" for one in protocol["evaluator"]) or "nobody"
    yield (
        f"{environment['name']} version {environment['version']}; at most {protocol['tool_budget']['max_steps']} "
        f"steps; temperature {scaffold['temperature']:g} (greedy: 0); system prompt {prompt}; judged by {judges}; "
        f"seed {summary['seed']}."
    )
    yield f"Intervals: {protocol['intervals']}"
    yield "What happens on faults and time-outs: protocol.failure_recovery in summary.json."


def _where(summary: Mapping[str, Any], path: Path) -> Iterator[str]:
    yield f"Written to {path}"
    yield "  attempts/     one row an attempt; trajectories/ what was done; summary.json these figures"
    if any(figures["unscored"] for figures in summary["modes"].values()):
        yield "  quarantine.jsonl  why attempts are unscored"
    if "comparison" not in summary:
        yield f"Next: compare another model on the same tasks: ... policy.model=OTHER against.run={path}"


def _name(against: Mapping[str, Any]) -> str:
    return str(against.get("run") or against.get("model"))


def _interval(estimate: Mapping[str, Any], percent: bool = True) -> str:
    if estimate["mean"] is None:
        return "unscored"
    scale, digits = (100, 1) if percent else (1, 3)
    mean, low, high = (f"{scale * estimate[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} % [{low}, {high}]" if percent else f"{mean} [{low}, {high}]"


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
