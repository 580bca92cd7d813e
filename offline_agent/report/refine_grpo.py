"""What a finished online stage leaves: tables that the offline stages read, figures, and the closing table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.report.servers import tables
from offline_agent.runner.terminal import copyable

if TYPE_CHECKING:
    from offline_agent.training.settings import TrainResult

_CROWDED = 0.8  # share of their time that threads are busy from which roll-outs wait for them


def ends(result: TrainResult) -> dict[str, Any]:
    """Return the round figures of the first and the last records."""
    names = (
        "reward_mean", "success_mean", "group_spread", "zero_spread", "entropy", "kl", "length", "mismatch",
        "prefix_cached", "handover_seconds",
    )  # fmt: skip
    few = max(1, min(5, len(result.records) // 2))

    def means(records: Any) -> dict[str, float]:
        known = {name: [r[name] for r in records if r.get(name) is not None] for name in names}
        return {name: sum(values) / len(values) for name, values in known.items() if values}

    return {"rounds_first": means(result.records[:few]), "rounds_last": means(result.records[-few:])}


def crowded(result: TrainResult, workers: int) -> Iterator[str]:
    """Yield a note where roll-outs waited for the threads that step environments."""
    busy = [record["tools_busy"] for record in result.records if "tools_busy" in record]
    if busy and (share := sum(busy) / len(busy)) > _CROWDED:
        yield (
            f"the {workers} threads that step environments were busy {share:.0%} of the time that roll-outs took; "
            "where tools wait rather than compute, raise limits.workers"
        )


def show(summary: Mapping[str, Any], path: Path) -> Any:
    """Return the closing table, and what to do next on a line that can be copied."""
    from rich.console import Group
    from rich.table import Table

    table = Table(title=summary["pipeline"], title_justify="left", show_header=False)
    training, rollouts, model = summary["training"], summary["rollouts"], summary["model"]
    first, last = training["rounds_first"], training["rounds_last"]

    def change(name: str, form: str) -> str:
        known = [f"{end[name]:{form}}" if name in end else "–" for end in (first, last)]
        return " → ".join(known)

    steps = f"{rollouts['env_steps']:,} steps of {summary['environment']}"
    table.add_row("played", f"{rollouts['attempts']} episodes, {steps}")
    if rollouts["unscored"]:
        table.add_row("unscored", f"{rollouts['unscored']}, in no mean and no loss")
    table.add_row("objective", summary["objective"]["name"])
    table.add_row("updates", f"{training['updates']} in {training['seconds']:.1f} s")
    table.add_row("success in training", change("success_mean", ".0%"))
    table.add_row("reward", change("reward_mean", ".3f"))
    table.add_row("entropy", f"{change('entropy', '.3f')} nats a token")
    table.add_row("groups without spread", change("zero_spread", ".0%"))
    if "prefix_cached" in last:
        table.add_row("prompt tokens reused", change("prefix_cached", ".0%"))
    table.add_row("agent tokens", f"{training['agent_tokens']:,}")
    saved = training["raw_tokens"] / max(1, training["tokens"])
    computed = f"{training['tokens']:,} for {training['raw_tokens']:,} of the rows"
    table.add_row("tokens computed", f"{computed}, {saved:.1f}× fewer")
    table.add_row("model", f"{model['path']} ({model['parameters']:,} weights, {model['trained']:,} trained)")
    for rule, update, text in summary["findings"]:
        table.add_row(f"watch: {rule}", f"update {update}: {text}")
    if summary["findings"]:
        for name, line in summary["checklist"]:
            table.add_row(f"check: {name}", line)
    for warning in summary["warnings"]:
        table.add_row("note", warning)
    after = f"python -m offline_agent.pipelines.evaluate policy.model={path / 'model'}"
    return Group(table, *tables(summary), copyable(f"Next: {after}"))
