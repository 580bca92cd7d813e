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
    figure_rows,
    interval,
    mined_rows,
    percent,
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
_ROWS = (
    (
        "tool calls", "tool_calls",
        "+ {this_session[calls_replayed]:,} to restore states, {replayed_calls:,} in the replays that mine pairs",
    ),
    (
        "requests that failed", "this_session.policy_errors",
        "of {this_session[requests]:,} to the policy; summary.json has examples (fault_examples)",
    ),
    ("sandbox", "sandbox", "where the policy's code ran (docs/sandbox.md)"),
    ("replays left out", "replays_left_out", "they did not fit in pairs.replay_budget; more of it may give more pairs"),
    (
        "verdicts judged again", "rejudged.judged",
        "of {rejudged[verdicts]:,}; {rejudged[disagreed]} did not repeat: their trees give no data",
    ),
    (
        "tokens sampled", "generated",
        "{this_session[prefilled_tokens]:,} prompt tokens computed, {this_session[reused_tokens]:,} reused",
    ),
)  # fmt: skip
_TIMES = (
    ("seconds, search", "seconds.search", "in {seconds[generation]:.1f} the policy was answering"),
    ("seconds, judging", "seconds.judging", "replays, relabelling, pairs, certificates, writing"),
)
_FEWER = (
    (
        "step pairs of few rollouts", "step_pairs_of_few_rollouts",
        f"of {{pairs[step]}}: a side has fewer than {FEW_ROLLOUTS}; search.simulations gives more",
    ),
    (
        "dropped by length matching", "pairs_dropped_by_length_matching",
        "the better side is mostly the shorter (or longer) one; pairs.length_tolerance=1 keeps them",
    ),
)  # fmt: skip


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the closing table."""
    title = f"build_prefs: {summary['policy']} in {summary['environment']} ({summary['split']})"
    return closing(
        *cut_advice(summary["cuts"]),
        table(title, _rows(summary)),
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
    yield from figure_rows(summary, _ROWS)
    yield from _successes(summary["success"], summary["tasks"] - summary["quarantined"]["trees"])
    yield from cut_rows(summary["cuts"])
    yield from mined_rows(summary)
    yield from figure_rows(summary, (*_FEWER, *_TIMES))


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
    if advice := what_pays(success["plain_sampled"], success.get("actions_of_shortest")):  # older runs have none
        yield "conditions as on", *advice


def what_pays(plain: float | None, actions: float | None) -> tuple[str, str] | None:
    """Return the task family that was measured under a run's conditions, and what a tree gained there.

    None without any success: no tree was measured there.

    Args:
        plain: Success of the policy's sampled roll-outs, before any search; None = not known.
        actions: Actions of the shortest success of a task, the mean over tasks; None = there is none.
    """
    if not plain or actions is None:
        return None
    page = "docs/what_pays.md"
    if plain > 0.4:
        return "shop", f"trees were level with plain attempts: search.algorithm=best_of_n is enough ({page})"
    if plain > 0.2:
        return "–", f"not measured: trees were where less than 20% or more than 40% of roll-outs succeed ({page})"
    if actions < 5:
        return "countdown", f"trees were level with plain attempts, pairs below fine-tuning ({page})"
    told = "trees were 6.7 points above plain attempts on one of two test sets, 3.6 with SmolLM2"
    return "FrozenLake", f"{told} ({page})"


def findings(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each cause, the first cause first: why there is little, and how to get more."""
    tasks, best = summary["tasks"], summary["success"]["best_of_search"]
    trees, branches = summary["quarantined"]["trees"], summary["quarantined"]["branches"]
    if trees > _MOST * tasks or (not summary["cuts"]["episodes"] and sum(summary["quarantined"].values())):
        yield (
            f"{trees} of {tasks} trees and {branches} branches are in quarantine"
            f"{commonest(summary['quarantine_reasons'])}. This says nothing about the policy: mend the environment, "
            "python -m offline_agent.envs.conformance checks it"
        )
    elif not best:
        yield (
            f"No tree has a success among {summary['cuts']['episodes']:,} ends, so there is nothing to learn from. "
            f"{_REMEDIES.get(summary['policy'], _REMEDY)}, take easier tasks, or raise search.simulations"
        )
    elif not summary["pairs_total"]:
        yield _no_pair(summary)
    elif summary["policy"] == "random" and best < _MOST and summary["filtered"] < _FEW:
        yield (
            f"policy=random solved {best:.0%} of {tasks} tasks and leaves {summary['filtered']} successes. A new model "
            "learns little from so few: raise tasks.n or search.simulations, give the class `demonstrate` and take "
            "policy=noisy, or begin with a trained model (docs/environments.md, 'Where random search is not enough')"
        )
    if summary["kept_unmatched"]:
        longer = "longer" if summary["kept_unmatched_longer"] else "shorter"
        yield (
            f"Length matching would drop {summary['kept_unmatched']} of {summary['pairs_total']} pairs, because the "
            f"better sides are {longer} than the others. So all are kept; a loss that counts tokens may learn the "
            "length: prefer dpo.loss=sigmoid_norm, which averages over tokens"
        )


_REMEDY = "Give the model a warm start (train_sft on demonstrations, a log, or the run of a search with policy=random)"
_EXPERT = "Conformance (envs.conformance) checks whether `demonstrate` solves the tasks; if so, raise search.max_steps"
_REMEDIES = {
    "random": "Give parameters a Literal type, or quote examples and ranges in their docstrings; name an expert "
    "(`demonstrate`, or env.demonstrate=module:function), take a model",
    "oracle": _EXPERT,
    "noisy": _EXPERT,
}


def _no_pair(summary: Mapping[str, Any]) -> str:
    success, refused = summary["success"], sum(summary["refused"].values())
    if success["best_of_search"] == success["plain_sampled"] == 1.0:
        return (
            f"No pair: every one of {summary['cuts']['episodes']:,} ends is a success, so there is nothing to compare. "
            "Take harder tasks, or a higher policy.temperature"
        )
    if refused:
        return (
            f"No pair: {refused} candidates were refused{commonest(summary['refusal_reasons'])}. quarantine.jsonl has "
            "the reason of each; docs/pairs.md has the rules and their keys"
        )
    return (
        f"No pair: {success['best_of_search']:.0%} of the tasks have a success, but none has a success and a failure "
        "that differ after a common history. Raise search.simulations or policy.temperature"
    )
