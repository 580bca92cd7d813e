"""Figures of a `build_prefs` run as its table, and the commands that may follow, from its summary.json."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.report import cuts
from offline_agent.report.closing import figures_table, pairs_written, quarantine_written
from offline_agent.report.findings import commonest, findings
from offline_agent.report.mining import FEW_ROLLOUTS
from offline_agent.report.servers import tables
from offline_agent.runner.next_steps import command, python
from offline_agent.runner.terminal import copyable

if TYPE_CHECKING:
    from rich.console import RenderableType


_OF_A_MODEL = ("colocated", "hf", "server")


def memory_note(held: Mapping[str, int]) -> str:
    """Return what of the memory is keys and values of the policy, and the keys that limit them."""
    return (
        f"of it keys and values {_gb(held['kept'])} kept of at most {_gb(held['kept_limit'])} (policy.cache_bytes), "
        f"{_gb(held['slots'])} in work of at most {_gb(held['slots_limit'])} (policy.slots)"
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the closing table."""
    from rich.console import Group

    title = f"build_prefs: {summary['policy']} in {summary['environment']} ({summary['split']})"
    table = figures_table(title, _table_rows(summary))
    where = copyable(
        f"\nWritten to {path}\n"
        f"{pairs_written(path)}"
        f"  filtered/     {summary['filtered']} verified successes for fine-tuning\n"
        f"  trajectories/ {summary['trajectories']} branches; trees/ {summary['tasks']} trees"
        f"{quarantine_written(path)}\n"
    )
    reasons = "\n".join(findings(summary))
    after = copyable("\n".join(next_steps(summary, path)))
    told = [reasons, ""] if reasons else []
    return Group(*cuts.advice(summary["cuts"]), table, *tables(summary), where, *told, after)


def next_steps(summary: Mapping[str, Any], path: Path) -> Iterator[str]:
    """Yield the lines on how to go on; never more of what gave nothing."""
    model = _trainable(summary)
    data = f"data.runs=[{path}]"
    yield "Next:"
    if summary["trajectories"]:
        yield f"  {command('inspect', [str(path), 'pair=0'])}"
    if summary["filtered"]:
        yield f"  {command('train_sft', [data, *model])}"
    if summary["pairs_total"] and summary["policy"] in _OF_A_MODEL:
        yield f"  {command('train_dpo', [data, *model])}"
    if summary["pairs_total"] or summary["filtered"]:
        after = summary["offset"] + summary["tasks"]
        yield f"  the same command with tasks.offset={after} and another run_dir gives more of them, from other tasks"
    if not summary["filtered"]:
        name = summary["typed"]["env"]
        yield f"  {python()} -m offline_agent.envs.conformance {shlex.quote(name)}"


def _trainable(summary: Mapping[str, Any]) -> list[str]:
    """Return the keys of the model that fine-tuning begins with: the policy's own, else a new one."""
    if summary["policy"] == "server":
        return ["model.path=MODEL"]  # its server may call it by another name than its folder's
    if summary["policy"] not in _OF_A_MODEL:
        return ["scratch.layers=3", "scratch.hidden_size=96"]
    return [] if summary["model"] is None else [f"model.path={summary['model']}"]


def _table_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    success, seconds, session = summary["success"], summary["seconds"], summary["this_session"]
    yield "tasks", str(summary["tasks"]), f"{summary['tasks_with_pairs']} with pairs"
    yield "simulations", f"{summary['simulations']:,}", _counts(_ends(summary["stopped"]), "ended by ")
    reused = session.get("calls_replayed", 0)
    note = f"+ {reused:,} to restore states, {summary['replayed_calls']:,} in the replays that mine pairs"
    yield "tool calls", f"{summary['tool_calls']:,}", note
    if failed := session.get("policy_errors"):
        note = f"of {session['requests']:,} to the policy; summary.json has examples (fault_examples)"
        yield "requests that failed", f"{failed:,}", note
    if "sandbox" in summary:
        yield "sandbox", summary["sandbox"], "where the policy's code ran (docs/sandbox.md)"
    if "environments_open" in session:
        note = f"limits.environments: at most {session['environments_limit']:,}"
        yield "environments open at once", f"{session['environments_open']:,}", note
    if summary["replays_left_out"]:
        note = "they did not fit in pairs.replay_budget; more of it may give more pairs"
        yield "replays left out", f"{summary['replays_left_out']:,}", note
    again = summary["rejudged"]
    if again["verdicts"]:
        note = f"{again['disagreed']} did not repeat"
        if again["disagreed"]:
            note += "; their trees give no data, see quarantine.jsonl"
        if again["broken"]:
            note += f"; the replays of {again['broken']} others broke"
        yield "verdicts judged again", f"{again['judged']:,}", f"of {again['verdicts']:,}; {note}"
    note = ""
    if session.get("prefilled_tokens"):
        note = f"{session['prefilled_tokens']:,} prompt tokens computed, {session['reused_tokens']:,} reused"
    yield "tokens sampled", f"{summary['generated']:,}", note
    greedy = f"sampled; greedy {_percent(success['plain_greedy'])}"
    yield "success, plain policy", _percent(success["plain_sampled"]), greedy
    note = f"a verified success in the tree; mean best score {success['best_score_of_search'] or 0:.2f}"
    yield "success, best of search", _percent(success["best_of_search"]), note
    yield from cuts.rows(summary["cuts"])
    yield "pairs", str(summary["pairs_total"]), _counts(summary["pairs"])
    if few := summary.get("step_pairs_of_few_rollouts"):  # runs of earlier versions have none
        note = (
            f"of {summary['pairs']['step']}: a side has fewer than {FEW_ROLLOUTS}; search.simulations gives more, and "
            "pairs.min_visits asks for more"
        )
        yield "step pairs of few rollouts", str(few), note
    if summary["pairs_dropped_by_length_matching"] > summary["pairs_total"]:
        note = "the better side is mostly the shorter (or longer) one; pairs.length_tolerance=1 keeps them"
        yield "dropped by length matching", str(summary["pairs_dropped_by_length_matching"]), note
    yield "filtered trajectories", str(summary["filtered"]), f"of {summary['trajectories']} trajectories"
    out = summary["quarantined"]
    note = _counts(out) + commonest(summary["quarantine_reasons"])
    yield "quarantined", str(sum(out.values())), note
    note = _counts(summary["refused"]) + commonest(summary["refusal_reasons"])
    yield "candidates refused", str(sum(summary["refused"].values())), note
    if "memory" in session:
        yield "memory, at most", _gb(session["memory"]["resident"]), memory_note(session["memory"])
    for part in ("generation", "tools", "judging", "bookkeeping"):
        if part in seconds:
            yield f"time, {part}", f"{seconds[part]:.1f} s", _TIME_NOTES[part]


_STOPS = {"closed": "nothing left to try", "tickets": "the policy repeating itself, or faults"}


def _ends(stopped: Mapping[str, int]) -> dict[str, int]:
    return {_STOPS.get(reason, reason): count for reason, count in stopped.items()}


_TIME_NOTES = {
    "generation": "the policy was answering; overlaps with the next two",
    "tools": "environment workers, summed over threads",
    "judging": "replays, relabelling, pairs, certificates, writing",
    "bookkeeping": "the search itself: selection, backup, event log",
}


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _counts(counts: Mapping[str, int], before: str = "") -> str:
    return ", ".join(f"{before}{name} {count}" for name, count in counts.items() if count)
