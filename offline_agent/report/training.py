"""Closing tables of the commands that train: `train_sft`, `train_dpo`, `train_reward` and `iterate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.report.closing import closing, interval, table
from offline_agent.report.judging import share
from offline_agent.runner.next_steps import command, evaluation

if TYPE_CHECKING:
    from rich.console import RenderableType


def show_training(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the closing table, and the next command on a line that can be copied."""
    told = table(summary["pipeline"], _table_rows(summary), ("what", "figure"))
    return closing(told, evaluation(path / "model", summary["environment_keys"]))


def _table_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    data, model, training = summary["data"], summary["model"], summary["training"]
    pairs = summary["pipeline"] == "train_dpo"
    kinds = ", ".join(f"{kind} {count}" for kind, count in data["kinds"].items())
    what = "pairs" if pairs else "trajectories"
    yield "learnt from", f"{data['kept']} {what} of {data['tasks']} tasks ({kinds})"
    left = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in data["left_out"].items())
    if left:
        yield "left out", f"{left} (of {data['read']})"
    if "replayed" in data:
        out = sum(data["replayed_left_out"].values())
        yield "replayed", f"{data['replayed']} verified successes" + (f", {out} left out" if out else "")
    reference = training.get("reference")
    if reference:
        why = f" ({data['reference_reason']})" if data.get("reference_reason") else ""
        yield "reference log-probs", f"stored {reference['stored']}, computed {reference['computed']}{why}"
    yield "updates", f"{training['updates']} in {training['seconds']:.1f} s"
    read = summary.get("reading")
    if read:
        loss = f"loss {read['loss_first']:.4f} → {read['loss_last']:.4f} a token of any kind"
        yield "read before", f"{read['updates']} updates in {read['seconds']:.1f} s, {loss}"
    first, last = training["first"], training["last"]
    of_it = "" if pairs else " a token of the policy's, on these rows"
    yield "loss", f"{first['loss']:.4f} → {last['loss']:.4f}{of_it}"
    if pairs:
        right = ("–" if (share := each.get("accuracy")) is None else f"{share:.2f}" for each in (first, last))
        yield "accuracy on the pairs", " → ".join(right)
        yield "chosen sides", f"{-first['sft']:.3f} → {-last['sft']:.3f} log-probability a token"
    speed = training["agent_tokens_per_second"]
    yield "agent tokens", f"{training['agent_tokens']:,}" + (f", {speed:,.0f} a second" if speed else "")
    saved = training["raw_tokens"] / max(1, training["tokens"])
    why = f"; histories are not shared: {training['shares_not']}" if training["shares_not"] else f", {saved:.1f}× fewer"
    yield "tokens computed", f"{training['tokens']:,} for {training['raw_tokens']:,} of the rows{why}"
    yield "model", f"{model['path']} ({model['parameters']:,} weights, {model['trained']:,} trained)"
    for warning in summary["warnings"]:
        yield "note", warning


def show_reward(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the table: agreement with the verdicts, on the tasks trained on and on those held out."""
    parts = {"trained on": "train", "held out, before": "held_out_before", "held out": "held_out"}
    rows = [(f"{name}: {summary[key]['judged']}", *_reward_cells(summary[key])) for name, key in parts.items()]
    columns = (">tasks", ">accuracy", ">over tasks", ">kappa", ">false positives", ">majority")
    keys = ["run_dir=RUN_DIR", "judge=reward_model", f"judge.path={summary['model']}"]
    after = f"Written to {summary['model']}\nNext:\n  {command('rejudge', keys)}"
    return closing(table("train_reward", rows, ("trajectories", *columns)), after)


def _reward_cells(part: Mapping[str, Any]) -> tuple[str, ...]:
    clustered = interval(part["accuracy_over_tasks"])
    kappa = "–" if part["kappa"] is None else f"{part['kappa']:.2f}"
    shares = [share(part["agreement"]), clustered, kappa, share(part["false_positives"])]
    return str(part["tasks"]), *shares, f"{part['majority']:.0%}"


_COLUMNS = ("iteration", "searched", ">pairs", "model", ">success", ">not worse", ">needed", "gate")
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
    pairs = str(record["pairs_total"]) + (f" + {record['replayed']} replayed" if record["replayed"] else "")
    yield str(record["iteration"]), searched, pairs, "incumbent", interval(incumbent["success"]), "", "", ""
    for name, candidate in record["candidates"].items():
        sure, needed = candidate["confidence_not_worse"], candidate["confidence_needed"]
        promoted = name == record["promoted"]
        verdict = "promoted" if promoted else "passed" if candidate["passed"] else "refused"
        shown = "–" if sure is None else f"{sure:.4f}"
        success = interval(candidate["success"])
        yield "", "", "", _NAMES.get(name, name), success, shown, f"{needed:.4f}", verdict


def _verdict(record: Mapping[str, Any]) -> str:
    kept = "" if record["promoted"] else f"kept {record['incumbent']['model']}; "
    won = f"{_NAMES[record['promoted']]} model promoted; " if record["promoted"] else kept
    return won + "; ".join([record["reason"], *record["notes"]])
