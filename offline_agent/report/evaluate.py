"""The results of `evaluate`: summary.json, and the closing tables made of it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.evaluation import report, test_time
from offline_agent.evaluation.statistics import FEW
from offline_agent.evaluation.test_time import EXTRA, SEARCHES
from offline_agent.policies.base import Policy
from offline_agent.report.closing import (
    CUT_WORDS,
    closing,
    count_cuts,
    cut_advice,
    interval,
    of_servers,
    percent,
    table,
)
from offline_agent.rollouts.attempts import Attempt
from offline_agent.runner.components import Parts
from offline_agent.runner.next_steps import command
from offline_agent.store.manifest import data_policy
from offline_agent.store.provenance import hash_json

if TYPE_CHECKING:
    from rich.console import RenderableType

_REFUSED = 0.2  # share of refused calls above which they are why a model fails

Summary = Mapping[str, Any]
Openings = Mapping[str, tuple[str, Sequence[Any]]]


def summary(
    config: EvaluateConfig,
    parts: Parts,
    played: Mapping[str, Sequence[Attempt]],
    openings: Openings,
    other: Policy | None = None,
) -> dict[str, Any]:
    """Return the figures as JSON.

    Args:
        config: The configuration.
        parts: Environment, tasks, the candidate.
        played: Attempts by policy: `candidate`, and `against` where `other` played.
        openings: System prompts and tools that attempts began with.
        other: The policy the candidate is compared with, played in this run.
    """
    how = (config.confidence, config.resamples)  # not the seed: `compare` draws the same intervals
    candidate = report.by_mode(attempt for attempt in played["candidate"] if attempt.mode != EXTRA)
    out: dict[str, Any] = {
        "environment": parts.spec.name,
        "policy": parts.policy.name,
        **({} if parts.spec.sandbox is None else {"sandbox": parts.spec.sandbox}),
        "model": parts.policy.identity.get("model"),
        "made_by": data_policy(config.policy.model),
        "tasks": len(parts.tasks),
        "split": config.tasks.split,
        "seed": config.seed,
        "modes": _modes(config, candidate),
        "cuts": count_cuts(
            sum(map(len, candidate.values())),
            Counter(attempt.cut_by for attempts in candidate.values() for attempt in attempts),
            config.max_steps, config.policy.max_tokens or parts.policy.max_tokens, ("max_steps", "policy.max_tokens"),
        ),
        "protocol": _protocol(config, parts, played, openings),
        **of_servers({"candidate": parts.policy, **({} if other is None else {"against": other})}),
    }
    alone = candidate.get("sampled") or candidate.get("greedy")
    for mode in SEARCHES:
        if mode in candidate and alone:
            out["gain_of_search"] = {
                "mode": mode, "over": alone[0].mode,
                **report.compare(report.results(candidate[mode]), report.results(alone), *how),
            }  # fmt: skip
    if other is not None:
        theirs = report.by_mode(attempt for attempt in played["against"] if attempt.mode != EXTRA)
        out["against"] = {
            **({"made_data": run} if (run := config.against_run()) is not None else {"model": config.against.model}),
            "policy": dict(other.identity),
            "modes": _modes(config, theirs),
        }
        out["comparison"] = {
            mode: report.compare(report.results(attempts), report.results(theirs[mode]), *how)
            for mode, attempts in candidate.items()
        }
    return out


def _modes(config: EvaluateConfig, modes: Mapping[str, Sequence[Attempt]]) -> dict[str, Any]:
    out = {}
    for mode, attempts in modes.items():
        out[mode] = report.figures(attempts, config.confidence, config.resamples)
        if mode in SEARCHES:
            out[mode]["test_time"] = test_time.spent(attempts, config.test_time.judge)
    return out


def _protocol(
    config: EvaluateConfig, parts: Parts, played: Mapping[str, Sequence[Attempt]], openings: Openings
) -> dict[str, Any]:
    """Return the facts that a reader needs to repeat a figure or to doubt it."""
    prompts = {(hash_json(system)[:16], hash_json(list(tools))[:16]) for system, tools in openings.values()}
    budget: dict[str, Any] = {"max_steps": config.max_steps}
    if config.test_time.algorithm != "none":
        budget["test_time"] = config.test_time.model_dump(mode="json")
    temperature, max_tokens = config.policy.temperature, config.policy.max_tokens or parts.policy.max_tokens
    hashes = [{"system_prompt_hash": system, "tools_hash": tools} for system, tools in sorted(prompts)]
    return {
        "environment": dict(parts.spec.identity),
        "policy": dict(parts.policy.identity),
        "tool_budget": budget,
        "scaffold": {"temperature": temperature, "max_tokens": max_tokens, "prompts": hashes},
        "evaluator": report.verifiers(attempt for attempts in played.values() for attempt in attempts),
        "failure_recovery": {**report.FAULTS, "limits": config.limits.model_dump(mode="json")},
        "seeds": [config.seed],
        "tasks": {"split": config.tasks.split, "n": len(parts.tasks)},
        "intervals": (
            f"{config.confidence:.0%}, percentile bootstrap over tasks ({config.resamples:,} resamples), so clustered "
            f"by task; at least as wide as Wilson's over tasks where fewer than {FEW} tasks went the other way "
            "(method bootstrap+wilson). What another seed's training would change is not in them."
        ),
    }


# -- tables --------------------------------------------------------------------------------------------------------


def show(summary: Summary, path: Path) -> RenderableType:
    """Return the closing tables, from summary.json."""
    modes = summary["modes"]
    name = f"{summary['policy']} in {summary['environment']}, {summary['tasks']} tasks ({summary['split']})"
    each = {mode: figures["attempts"] // max(1, figures["tasks"]) for mode, figures in modes.items()}
    columns = ("what", *(f">{mode} (×{many})" if many > 1 else f">{mode}" for mode, many in each.items()))
    parts: list[Any] = [*cut_advice(summary["cuts"]), table(f"evaluate: {name}", _rows(list(modes.values())), columns)]
    if compared := list(_compared(summary)):
        columns = ("what", ">candidate", ">against", ">difference in points", ">p-value", ">tasks")
        parts.append(table("success, paired over the same tasks", compared, columns))
    return closing(*parts, "\n".join(["", *_notes(summary), "", *_where(summary, path)]))


def _rows(columns: Sequence[Summary]) -> Iterator[list[str]]:
    def shares(what: str, *keys: str) -> list[str]:
        found: Sequence[Any] = [reduce(getitem, keys, of) for of in columns]
        return [what, *(percent(share, 1) for share in found)]

    yield ["success", *(interval(of["success"], ".1%") for of in columns)]
    yield ["reward", *(interval(of["reward"], ".3f") for of in columns)]
    if any(abs((of["end_score"] or 0) - (of["reward"]["mean"] or 0)) > 1e-9 for of in columns):
        yield ["score when it ended or was cut", *(_number(of["end_score"], 3) for of in columns)]
    for name, key in (("pass@", "pass_at"), ("pass^", "pass_hat")):
        for k in sorted({int(k) for of in columns for k in of[key]} - {1}):
            yield [f"{name}{k}", *(percent(of[key].get(str(k), {}).get("mean"), 1) for of in columns)]
    yield ["steps", *(_number(of["steps"]) for of in columns)]
    for name in ("invalid", "refused", "repeated"):
        yield shares(f"{name} calls", f"{name}_call_rate")
    for kind, words in CUT_WORDS.items():
        if kind != "context" or any(of["cut_rates"][kind] for of in columns):
            yield shares(f"cut by {words}", "cut_rates", kind)
    if any(of["unscored"] for of in columns):
        yield ["unscored attempts", *(str(of["unscored"]) for of in columns)]
        yield shares("success, unscored = failed", "success_if_unscored_failed")
    yield ["tokens an attempt", *(f"{of['tokens']['generated_per_attempt']:,.0f}" for of in columns)]


def _compared(summary: Summary) -> Iterator[tuple[str, ...]]:
    for mode, compared in summary.get("comparison", {}).items():
        yield mode, *_cells(compared)
    gain = summary.get("gain_of_search")
    if gain is not None:
        yield f"{gain['mode']} against {gain['over']}", *_cells(gain)


def _cells(compared: Summary) -> tuple[str, ...]:
    difference, p_value = compared["difference"], compared["p_value"]
    if difference["mean"] is None:
        return "–", "–", str(compared["error"]), "–", "0"
    mean, low, high = (f"{100 * difference[side]:+.1f}" for side in ("mean", "low", "high"))
    return (
        percent(compared["candidate"], 1), percent(compared["against"], 1), f"{mean} [{low}, {high}]",
        f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001",
        f"{compared['tasks']} ({compared['tasks_that_differ']} differ)",
    )  # fmt: skip


def _notes(summary: Summary) -> Iterator[str]:
    against = summary.get("against")
    if against is not None:
        made = f"the policy of {against['made_data']}" if "made_data" in against else ""
        yield f"Against: {made or against.get('model')}"
        yield from in_words(summary)
    for mode, figures in summary["modes"].items():
        if "test_time" in figures:
            yield f"{mode}: {figures['test_time']['in_words']}"
    protocol = summary["protocol"]
    environment, scaffold = protocol["environment"], protocol["scaffold"]
    prompts = scaffold["prompts"]
    prompt = prompts[0]["system_prompt_hash"] if len(prompts) == 1 else f"and tools: {len(prompts)} different"
    judges = ", ".join(f"{one['verifier']} (version {one['version']})" for one in protocol["evaluator"]) or "nobody"
    yield (
        f"{environment['name']} version {environment['version']}; at most {protocol['tool_budget']['max_steps']} "
        f"steps; temperature {scaffold['temperature']:g} (greedy: 0); system prompt {prompt}; judged by {judges}; "
        f"seed {summary['seed']}."
    )
    yield f"Intervals: {protocol['intervals']}"
    yield "What happens on faults and time-outs: protocol.failure_recovery in summary.json."


def in_words(summary: Summary) -> Iterator[str]:
    """Yield what each comparison with the other policy shows, and why the candidate is worse where its calls say so."""
    unsure = ": not more than chance can do; more tasks (tasks.n) may tell"
    for mode, compared in summary.get("comparison", {}).items():
        difference = compared["difference"]
        if difference["mean"] is None:
            continue
        mean, low, high = (100 * difference[side] for side in ("mean", "low", "high"))
        yield (
            f"{mode}: the candidate is {abs(mean):.1f} points {'below' if mean < 0 else 'above'} the other policy "
            f"(difference {low:+.1f} to {high:+.1f}){unsure if low <= 0 <= high else ''}"
        )
        refused = summary["modes"][mode]["refused_call_rate"] or 0.0
        if high < 0 and refused > _REFUSED:
            yield (
                f"  {refused:.0%} of its calls are refused by the tools: it writes calls and does not know with which "
                "values; it needs successes of more different tasks, and a new model scratch.reading=2"
            )


def _where(summary: Summary, path: Path) -> Iterator[str]:
    yield f"Written to {path}"
    yield "  attempts/     one row an attempt; trajectories/ what was done; summary.json these figures"
    if any(figures["unscored"] for figures in summary["modes"].values()):
        yield "  quarantine.jsonl  why attempts are unscored"
    if "comparison" not in summary and summary.get("made_by"):
        against = shlex.quote(f"against.run={summary['made_by']}")
        yield f"Next: the policy that made its data on the same tasks: the same command with {against}"
    elif "comparison" not in summary:
        yield "Next: another policy on the same tasks: the same command with policy.model=..., then"
        yield f"  {command('compare', [str(path), 'RUN'])}"


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
