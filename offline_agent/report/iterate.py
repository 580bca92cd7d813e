"""The closing table of `iterate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.report.closing import closing, table
from offline_agent.runner.next_steps import evaluation

if TYPE_CHECKING:
    from rich.console import RenderableType

_COLUMNS = ("iteration", "searched", ">pairs", "model", ">success", ">not worse", ">needed", "gate")
_NAMES = {"train_sft": "fine-tuned", "train_dpo": "preferences", "refine_grpo": "refined"}


def percent(figures: Mapping[str, Any]) -> str:
    """Return a share with its interval, e.g. `42 % (35 to 49)`; a dash where there is none."""
    if figures["mean"] is None:
        return "–"
    return f"{100 * figures['mean']:.0f} % ({100 * figures['low']:.0f} to {100 * figures['high']:.0f})"


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the closing table."""
    held_out = summary["held_out"]
    title = (
        f"iterate: {summary['start_model']} in {summary['environment']}; success on {held_out['n']} "
        f"{held_out['split']} tasks of each iteration, {held_out['attempts']} sampled attempts each, 95 % intervals "
        "over tasks"
    )
    reasons = [f"iteration {record['iteration']}: {_verdict(record)}" for record in summary["iterations"]]
    if summary["stopped"]:
        reasons.append(f"stopped {summary['stopped']}")
    change = f"held-out success: {percent(summary['start'])} at the start, {percent(summary['end'])} at the end"
    change += "; each iteration has tasks of its own" if len(summary["iterations"]) > 1 else ""
    return closing(
        table(title, (row for record in summary["iterations"] for row in _rows(record)), _COLUMNS),
        "\n".join(["", *reasons, change, ""]),
        f"The model ({summary['model']['from']}) is in {path}/model; policy.model= takes it",
        f"Every stage's run directory and configuration is in {path}/iteration-*/",
        evaluation(path / "model", summary["environment_keys"]),
    )


def _rows(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    tasks, incumbent = record["tasks"], record["incumbent"]
    searched = f"{tasks['searched']} tasks ({tasks['new']} new)"
    pairs = str(record["pairs_total"]) + (f" + {record['replayed']} replayed" if record["replayed"] else "")
    yield str(record["iteration"]), searched, pairs, "incumbent", percent(incumbent["success"]), "", "", ""
    for name, candidate in record["candidates"].items():
        sure, needed = candidate["confidence_not_worse"], candidate["confidence_needed"]
        promoted = name == record["promoted"]
        verdict = "promoted" if promoted else "passed" if candidate["passed"] else "refused"
        shown = "–" if sure is None else f"{sure:.4f}"
        success = percent(candidate["success"])
        yield "", "", "", _NAMES.get(name, name), success, shown, f"{needed:.4f}", verdict


def _verdict(record: Mapping[str, Any]) -> str:
    kept = "" if record["promoted"] else f"kept {record['incumbent']['model']}; "
    won = f"{_NAMES[record['promoted']]} model promoted; " if record["promoted"] else kept
    return won + "; ".join([record["reason"], *record["notes"]])
