"""Closing table of `build_prefs` from its summary.json: figures, why there is little, and commands that may follow."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.report.closing import (
    closing,
    commonest,
    counted,
    cut_advice,
    cut_rows,
    interval,
    mined_rows,
    percent,
    server_lines,
    table,
    tables_written,
)
from offline_agent.report.mining import FEW_ROLLOUTS
from offline_agent.runner.next_steps import command, python

if TYPE_CHECKING:
    from rich.console import RenderableType

_OF_A_MODEL = ("colocated", "hf", "server")
_MOST = 0.5  # share of the tasks or of the candidates above which one cause is named
_FEW = 100  # successes below which a new model of random search has learnt next to nothing (docs/environments.md)
_STOPS = {"closed": "nothing left to try", "tickets": "the policy repeating itself, or faults"}
_TIMES = {
    "generation": "the policy was answering; overlaps with the next two",
    "tools": "environment workers, summed over threads",
    "judging": "replays, relabelling, pairs, certificates, writing",
    "bookkeeping": "the search itself: selection, backup, event log",
}


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the closing table."""
    title = f"build_prefs: {summary['policy']} in {summary['environment']} ({summary['split']})"
    return closing(
        *cut_advice(summary["cuts"]),
        table(title, _rows(summary)),
        server_lines(summary),
        f"\nWritten to {path}\n" + tables_written(summary, path, f"branches; trees/ {summary['tasks']} trees"),
        *(f"{text}\n" for text in findings(summary)),
        "\n".join(next_steps(summary, path)),
    )


def next_steps(summary: Mapping[str, Any], path: Path) -> Iterator[str]:
    """Yield the lines on how to go on; never more of what gave nothing."""
    model = _trainable(summary)
    data = f"data.runs=[{path}]"
    yield "Next:"
    if summary["trajectories"]:
        yield f"  {command('inspect', [str(path), *(['pair=0'] if summary['pairs_total'] else [])])}"
    if summary["filtered"]:
        yield f"  {command('train_sft', [data, *model])}"
    if summary["pairs_total"] and summary["policy"] in _OF_A_MODEL:
        kinds = [] if summary["pairs"].get("step") else [f"data.kinds=[{','.join(summary['pairs'])}]"]
        yield f"  {command('train_dpo', [data, *kinds, *model])}"
    if summary["pairs_total"] or summary["filtered"]:
        after = summary["offset"] + summary["tasks"]
        yield f"  for more: the same command with another run_dir and tasks.offset={after}, if the split has more tasks"
    if not summary["filtered"]:
        keys = [key for key in summary["environment_keys"] if not key.startswith(("env=", "env.isolate="))]
        yield f"  {python()} -m offline_agent.envs.conformance {shlex.join([summary['typed']['env'], *keys])}"


def _trainable(summary: Mapping[str, Any]) -> list[str]:
    """Return the keys of the model that fine-tuning begins with: the policy's own, else a new one."""
    if summary["policy"] == "server":
        return ["model.path=MODEL"]  # its server may call it by another name than its folder's
    if summary["policy"] not in _OF_A_MODEL:
        return ["scratch.layers=3", "scratch.hidden_size=96"]
    return [] if summary["model"] is None else [f"model.path={summary['model']}"]


def _rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "tasks", str(summary["tasks"]), f"{summary['tasks_with_pairs']} with pairs"
    ends = {_STOPS.get(reason, reason): count for reason, count in summary["stopped"].items()}
    yield "simulations", f"{summary['simulations']:,}", counted(ends, "ended by ")
    yield from _calls(summary, summary["this_session"])
    yield from _successes(summary["success"], summary["tasks"])
    yield from cut_rows(summary["cuts"])
    yield from _data(summary)
    yield from _cost(summary["seconds"])


def _calls(summary: Mapping[str, Any], session: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
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
        note += "; their trees give no data, see quarantine.jsonl" if again["disagreed"] else ""
        note += f"; the replays of {again['broken']} others broke" if again["broken"] else ""
        yield "verdicts judged again", f"{again['judged']:,}", f"of {again['verdicts']:,}; {note}"
    note = ""
    if session.get("prefilled_tokens"):
        note = f"{session['prefilled_tokens']:,} prompt tokens computed, {session['reused_tokens']:,} reused"
    yield "tokens sampled", f"{summary['generated']:,}", note


def _successes(success: Mapping[str, Any], tasks: int) -> Iterator[tuple[str, str, str]]:
    """Yield the shares; Wilson's intervals over tasks, as if a task's attempts were all alike: rather too wide."""

    from offline_agent.evaluation.statistics import wilson

    def share(value: float | None) -> str:
        low, high = (0, 0) if value is None else wilson(value, tasks)
        return interval({"mean": value, "low": low, "high": high})

    note = f"sampled; greedy {percent(success['plain_greedy'])}"
    yield "success, plain policy", share(success["plain_sampled"]), note
    note = f"a verified success in the tree; mean best score {success['best_score_of_search'] or 0:.2f}"
    yield "success, best of search", share(success["best_of_search"]), note


def _data(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield from mined_rows(summary)
    if few := summary.get("step_pairs_of_few_rollouts"):  # runs of earlier versions have none
        note = (
            f"of {summary['pairs']['step']}: a side has fewer than {FEW_ROLLOUTS}; search.simulations gives more, and "
            "pairs.min_visits asks for more"
        )
        yield "step pairs of few rollouts", str(few), note
    if summary["pairs_dropped_by_length_matching"] > summary["pairs_total"]:
        note = "the better side is mostly the shorter (or longer) one; pairs.length_tolerance=1 keeps them"
        yield "dropped by length matching", str(summary["pairs_dropped_by_length_matching"]), note


def _cost(seconds: Mapping[str, float]) -> Iterator[tuple[str, str, str]]:
    for part, note in _TIMES.items():
        if part in seconds:
            yield f"time, {part}", f"{seconds[part]:.1f} s", note


def findings(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each cause, the first cause first: why there is little, and how to get more."""
    tasks, best = summary["tasks"], summary["success"]["best_of_search"]
    if summary["quarantined"]["trees"] > _MOST * tasks or (
        not summary["cuts"]["episodes"] and sum(summary["quarantined"].values())
    ):
        yield _quarantined(summary)
    elif not best:
        yield _no_success(summary)
    elif not summary["pairs_total"]:
        yield _no_pair(summary)
    elif summary["policy"] == "random" and best < _MOST and summary["filtered"] < _FEW:
        yield (
            f"policy=random solved {best:.0%} of {summary['tasks']} tasks and leaves {summary['filtered']} successes. "
            "A new model learns little from so few: raise tasks.n or search.simulations, give the class `demonstrate` "
            "and take policy=noisy, or begin with a model that is trained already (docs/environments.md, 'Where random "
            "search is not enough')"
        )
    if summary["kept_unmatched"]:
        longer = "longer" if summary["kept_unmatched_longer"] else "shorter"
        yield (
            f"Length matching would drop {summary['kept_unmatched']} of {summary['pairs_total']} pairs, because the "
            f"better sides are {longer} than the others. So all are kept; a loss that counts tokens may learn the "
            f"length: prefer dpo.loss=sigmoid_norm, which averages over tokens, or look whether {longer} answers are "
            "right here"
        )


def _quarantined(summary: Mapping[str, Any]) -> str:
    trees, branches = summary["quarantined"]["trees"], summary["quarantined"]["branches"]
    return (
        f"{trees} of {summary['tasks']} trees and {branches} branches are in quarantine"
        f"{commonest(summary['quarantine_reasons'])}. This says nothing about the policy: mend the environment, "
        "python -m offline_agent.envs.conformance checks it"
    )


def _no_success(summary: Mapping[str, Any]) -> str:
    told = f"No tree has a success among {summary['cuts']['episodes']:,} ends, so there is nothing to learn from. "
    policy = summary["policy"]
    if policy == "random":
        return told + (
            "policy=random calls tools with arguments from ranges, examples and texts that it has read: give "
            "parameters a Literal type, or quote examples and ranges in their docstrings; name an expert (the class "
            "method `demonstrate`, or env.demonstrate=module:function); take easier tasks or a model; or raise "
            "search.simulations"
        )
    if policy in ("oracle", "noisy"):
        return told + (
            f"policy={policy} plays the environment's own `demonstrate`: python -m offline_agent.envs.conformance "
            "checks whether it solves the tasks; raise search.max_steps if it needs more actions"
        )
    return told + (
        "Give the model a warm start (train_sft on demonstrations, on a log in data.files, or on the run of a search "
        "with policy=random), take easier tasks, or raise search.simulations"
    )


def _no_pair(summary: Mapping[str, Any]) -> str:
    success = summary["success"]
    if success["best_of_search"] == 1.0 and success["plain_sampled"] == 1.0:
        return (
            f"No pair: every one of {summary['cuts']['episodes']:,} ends is a success, so there is nothing to compare. "
            "Take harder tasks, or a higher policy.temperature"
        )
    refused = sum(summary["refused"].values())
    if refused:
        return (
            f"No pair: {refused} candidates were refused{commonest(summary['refusal_reasons'])}. quarantine.jsonl has "
            "the reason of each; docs/pairs.md has the rules and their keys"
        )
    return (
        f"No pair: {success['best_of_search']:.0%} of the tasks have a success, but none has a success and a failure "
        "that differ after a common history. Raise search.simulations or policy.temperature"
    )
