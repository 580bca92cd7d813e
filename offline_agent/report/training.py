"""Closing tables of the commands that train: `train_sft`, `train_dpo`, `train_reward` and `iterate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.report.closing import change_rows, closing, counted, figure_rows, interval, percent, table
from offline_agent.report.judging import share
from offline_agent.runner.next_steps import command, evaluation

if TYPE_CHECKING:
    from rich.console import RenderableType


def show_training(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the closing table, and the next command on a line that can be copied."""
    told = table(summary["pipeline"], _table_rows(summary))
    return closing(told, evaluation(path / "model", summary["environment_keys"]))


_ROWS = (
    ("replayed", "data.replayed", "verified successes"),
    ("reference log-probs", "training.reference.computed", "computed, {training[reference][stored]:,} stored"),
    ("updates", "training.updates", "in {training[seconds]:.1f} s"),
    ("read before", "reading.updates", "updates, loss {reading[loss_first]:.4f} → {reading[loss_last]:.4f} a token"),
    ("agent tokens", "training.agent_tokens", ""),
    ("tokens computed", "training.tokens", "for {training[raw_tokens]:,} of the rows"),
    ("histories are not shared", "training.shares_not", ""),
    ("weights", "model.parameters", "{model[trained]:,} trained; {model[path]}"),
)
_CHANGES = (("loss", "loss", ".4f"), ("accuracy on the pairs", "accuracy", ".2f"), ("chosen sides, nats", "sft", ".3f"))


def _table_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    data = summary["data"]
    what = "pairs" if summary["pipeline"] == "train_dpo" else "trajectories"
    yield "learnt from", f"{data['kept']:,}", f"{what} of {data['tasks']} tasks ({counted(data['kinds'])})"
    if any(data["left_out"].values()):
        yield "left out", f"{sum(data['left_out'].values()):,}", counted(data["left_out"])
    yield from figure_rows(summary, _ROWS)
    yield from change_rows(summary["training"], _CHANGES, "updates")
    yield from (("note", "", warning) for warning in summary["warnings"])


def show_reward(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the table: agreement with the labels, on the tasks trained on and on those held out."""
    parts = {"trained on": "train", "held out, before": "held_out_before", "held out": "held_out"}
    what, cells, columns = "trajectories", _reward_cells, _REWARD_COLUMNS
    next_one = command("rejudge", ["run_dir=RUN_DIR", "judge=reward_model", f"judge.path={summary['model']}"])
    if summary["labels"] == "steps":
        what, cells, columns = "turns", _step_cells, _STEP_COLUMNS
        next_one = command("build_prefs", [f"search.critic={summary['model']}"])
    rows = [(f"{name}: {summary[key].get('judged', summary[key].get('turns'))}", *cells(summary[key]))
            for name, key in parts.items()]  # fmt: skip
    after = f"Written to {summary['model']}\nNext:\n  {next_one}"
    return closing(table("train_reward", rows, (what, *columns)), after)


_REWARD_COLUMNS: tuple[str, ...] = (">tasks", ">accuracy", ">over tasks", ">kappa", ">false positives", ">majority")
_STEP_COLUMNS = (">tasks", ">value", ">Brier", ">of the mean", ">calibration", ">AUC", ">AUC within tasks")


def _step_cells(part: Mapping[str, Any]) -> tuple[str, ...]:
    figures = [f"{part[name]:.3f}" for name in ("value", "brier", "brier_of_mean", "calibration")]
    overall = "–" if part["auc"] is None else f"{part['auc']:.3f}"
    return str(part["tasks"]), *figures, overall, interval(part["auc_within_tasks"])


def _reward_cells(part: Mapping[str, Any]) -> tuple[str, ...]:
    clustered = interval(part["accuracy_over_tasks"])
    kappa = "–" if part["kappa"] is None else f"{part['kappa']:.2f}"
    shares = [share(part["agreement"]), clustered, kappa, share(part["false_positives"])]
    return str(part["tasks"]), *shares, f"{part['majority']:.0%}"


_COLUMNS = ("iteration", "searched", ">successes, pairs", "model", ">success", ">not worse", ">needed", "gate")
_NAMES = {"train_sft": "fine-tuned", "train_dpo": "preferences"}


def show_loop(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the closing table."""
    held_out = summary["held_out"]
    title = (
        f"iterate: {summary['start_model']} in {summary['environment']}; success on {held_out['n']} "
        f"{held_out['split']} tasks of each iteration, {held_out['attempts']} sampled attempts each, 95 % intervals "
        "over tasks"
    )
    reasons = [f"iteration {record['iteration']}: {_verdict(record)}" for record in summary["iterations"]]
    reasons += [_proposals(record) for record in summary["iterations"] if "proposed" in record]
    if summary["stopped"]:
        reasons.append(f"stopped {summary['stopped']}")
    change = f"held-out success: {interval(summary['start'])} at the start, {interval(summary['end'])} at the end"
    change += "; each iteration has tasks of its own" if len(summary["iterations"]) > 1 else ""
    return closing(
        table(title, (row for record in summary["iterations"] for row in _loop_rows(record)), _COLUMNS),
        "\n".join(["", *reasons, change, ""]),
        f"The model ({summary['model']['from']}) is in {path}/model; policy.model= takes it",
        f"Every stage's run directory and configuration is in {path}/iteration-*/",
        evaluation(path / "model", summary["environment_keys"]),
    )


def _loop_rows(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    tasks, incumbent = record["tasks"], record["incumbent"]
    searched = f"{tasks['searched']} tasks ({tasks['new']} new)"
    found = f"{record['filtered']}, {record['pairs_total']}"
    yield str(record["iteration"]), searched, found, "incumbent", interval(incumbent["success"]), "", "", ""
    for name, candidate in record["candidates"].items():
        sure, needed = candidate["confidence_not_worse"], candidate["confidence_needed"]
        promoted = name == record["promoted"]
        verdict = "promoted" if promoted else "passed" if candidate["passed"] else "refused"
        shown = "–" if sure is None else f"{sure:.4f}"
        success = interval(candidate["success"])
        yield "", "", "", _NAMES.get(name, name), success, shown, f"{needed:.4f}", verdict


def _proposals(record: Mapping[str, Any]) -> str:
    told = record["proposed"]
    each = (f"{told[name]['tasks']} ({percent(told[name]['success'])} success)" for name in ("searched", "others"))
    return (
        f"iteration {record['iteration']}: {told['source']} proposed tasks: accepted {counted(told['proofs']) or 0}; "
        f"refused {counted(told['refused']) or 0}; {told['calls']:,} calls and {told['resets']:,} resets to check "
        f"them; searched {' and of others '.join(each)}"
    )


def _verdict(record: Mapping[str, Any]) -> str:
    kept = "" if record["promoted"] else f"kept {record['incumbent']['model']}; "
    won = f"{_NAMES[record['promoted']]} model promoted; " if record["promoted"] else kept
    return won + "; ".join([record["reason"], *record["notes"]])
