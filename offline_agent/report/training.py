"""Closing table of `train_sft` and `train_dpo`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from offline_agent.runner.next_steps import evaluation
from offline_agent.runner.terminal import copyable


def show(summary: Mapping[str, Any], path: Path) -> Any:
    """Return the closing table, and the next command on a line that can be copied."""
    from rich.console import Group
    from rich.table import Table

    table = Table(title=summary["pipeline"], title_justify="left", show_header=False)
    for row in _table_rows(summary, path):
        table.add_row(*row)
    return Group(table, copyable(evaluation(path / "model", summary["environment_keys"])))


def _table_rows(summary: Mapping[str, Any], path: Path) -> Iterator[tuple[str, str]]:
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
    of_it = "" if pairs else " a token of the policy's"
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
