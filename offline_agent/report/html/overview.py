"""Overview of the page: what ran, its cost by part, what to do next, and the closing table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from typing import Any

from offline_agent.report import (
    audit,
    build_prefs,
    calibrate,
    cuts,
    evaluate,
    import_logs,
    iterate,
    refine_grpo,
    rejudge,
    train_reward,
    training,
)
from offline_agent.report.findings import findings
from offline_agent.report.html.reading import RunFiles
from offline_agent.report.html.text import number
from offline_agent.runner.next_steps import command, evaluation

CLOSING: dict[str, Callable[[Mapping[str, Any], Any], Any]] = {
    "audit": audit.show,
    "build_prefs": build_prefs.show,
    "calibrate": calibrate.show,
    "evaluate": evaluate.show,
    "import_logs": import_logs.show,
    "iterate": iterate.show,
    "refine_grpo": refine_grpo.show,
    "rejudge": rejudge.show,
    "train_dpo": training.show,
    "train_reward": train_reward.show,
    "train_sft": training.show,
}
"""The closing table of each command."""
_SOURCES = (
    ("source", ""), ("policy", "model"), ("model", "path"), ("against", "run"), ("against", "model"), ("data", "runs"),
    ("anchor", "runs"), ("offline", "runs"), ("tokens", "runs"),
)  # fmt: skip
"""Section and key of configurations that name a run, or a model inside one."""


def facts(run: RunFiles) -> list[tuple[str, str]]:
    """Return what ran, on what: command, environment, policy, tasks, seed, times, machine, code."""
    manifest, config = run.manifest, run.config
    machine = manifest.get("machine") or {}
    policy, env = manifest.get("policy") or {}, manifest.get("env") or {}
    model, judge = config.get("model"), config.get("judge")
    version = f"version {env['version']}" if env.get("version") else None
    out = [
        ("command", run.command),
        ("status", f"{manifest.get('status')}" + (f": {manifest['error']}" if manifest.get("error") else "")),
        ("environment", " ".join(str(part) for part in (env.get("name"), version) if part)),
        ("policy", ", ".join(str(part) for part in (policy.get("kind"), policy.get("model")) if part)),
        ("model", str(model.get("path") or "embedded default") if isinstance(model, Mapping) else str(model or "")),
        ("made from", ", ".join(dict.fromkeys(_sources(config)))),
        ("judge", str(judge.get("name") or "") if isinstance(judge, Mapping) else ""),
        ("tasks", _tasks(config.get("tasks"), run.summary)),
        ("seed", str(config.get("seed"))),
        ("started, ended", f"{_time(manifest.get('started'))}, {_time(manifest.get('ended')) or 'not ended'}"),
        ("gone on with", f"{len(manifest['resumed'])} times" if manifest.get("resumed") else ""),
        ("machine", f"{machine.get('host')}, {machine.get('cores')} cores, Python {machine.get('python')}"),
        ("code", f"version {manifest.get('version')}, commit {str(manifest.get('git_commit'))[:12]}"),
    ]  # fmt: skip
    return [(name, text) for name, text in out if text]


def _time(stamp: Any) -> str:
    return str(stamp or "").replace("T", " ").replace("+00:00", " UTC")


def _sources(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the runs, models and logs that a configuration names."""
    for section, key in _SOURCES:
        named = config.get(section)
        value = named.get(key) if isinstance(named, Mapping) else named if not key else None
        yield from map(str, value if isinstance(value, list | tuple) else [value] if value else [])


def _tasks(tasks: Any, summary: Mapping[str, Any]) -> str:
    if isinstance(tasks, int):
        return f"at most {tasks:,} of each split"  # of an audit
    count = summary.get("tasks")
    split = str(tasks.get("split") or "") if isinstance(tasks, Mapping) else ""
    return " of split ".join(part for part in (number(count) if isinstance(count, int) else "", split) if part)


def cost(run: RunFiles) -> list[dict[str, Any]]:
    """Return tables of the cost by part: heading, unit, and (part, amount, share of the largest, note)."""
    summary = run.summary
    session, seconds = summary.get("this_session") or {}, summary.get("seconds") or {}
    calls: list[tuple[str, Any, str]] = []
    if run.command == "build_prefs" and summary:
        again = summary["rejudged"]
        calls = [
            ("search", summary["tool_calls"], "calls that extend a tree"),
            ("restoring", session.get("calls_replayed"), "calls repeated to get back to a state (this session)"),
            ("mining", summary["replayed_calls"], f"calls in {summary['replays']:,} replays that make pairs"),
            ("judging", again["judged"], f"judged again of {again['verdicts']:,}; {again['disagreed']} differ"),
        ]  # fmt: skip
    elif run.command == "evaluate" and summary:
        calls = [(mode, found["tool_calls"], f"{found['attempts']} attempts") for mode, found in
                 summary["modes"].items()]  # fmt: skip
    tokens = [
        ("sampled", session.get("generated_tokens"), "by the policy"),
        ("prompts computed", session.get("prefilled_tokens"), "not found in a cache"),
        ("prompts reused", session.get("reused_tokens"), "found in a cache"),
    ]
    made = summary.get("training") or {}
    if made:
        tokens = [("computed", made["tokens"], "with shared histories computed once"),
                  ("in the rows", made["raw_tokens"], "as they are"),
                  ("agent tokens", made["agent_tokens"], "trained on")]  # fmt: skip
    times = [(name, value, "") for name, value in seconds.items()] if isinstance(seconds, Mapping) else []
    tables = (("Calls of tools", "", calls), ("Tokens", "", tokens), ("Seconds", " s", times))
    return [table for heading, unit, rows in tables if (table := _bars(heading, unit, rows))["rows"]]


def _bars(heading: str, unit: str, rows: list[tuple[str, Any, str]]) -> dict[str, Any]:
    known = [(name, value, note) for name, value, note in rows if isinstance(value, int | float)]
    most = max((value for _, value, _ in known), default=0) or 1
    shown = [
        {"name": name, "amount": number(value, 1) + unit, "share": value / most, "note": note}
        for name, value, note in known
    ]
    return {"heading": heading, "rows": shown}


def advice(run: RunFiles) -> list[str]:
    """Return sentences on what to look at, and commands that come next."""
    summary, path = run.summary, run.path
    if not summary:
        return [f"The run is {run.manifest.get('status')} and has no summary yet; give its command again to go on."]
    out: list[str] = list(cuts.advice(summary["cuts"])) if "cuts" in summary else []
    if run.command == "build_prefs":
        out += [*findings(summary), *build_prefs.next_steps(summary, path)]
    elif run.command == "import_logs":
        out += [*import_logs.findings(summary), *import_logs.next_steps(summary, path)]
    elif run.command in ("train_sft", "train_dpo", "refine_grpo", "iterate"):
        out.append(evaluation(path / "model", summary["environment_keys"]))
    elif run.command == "evaluate" and "comparison" not in summary:
        out.append(f"Another policy on the same tasks: the same command with policy.model=... against.run={path}")
    if run.command in ("build_prefs", "import_logs", "evaluate"):
        out.append(f"On the terminal: {command('inspect', [str(path)])}")
    return [line for line in out if line.strip() and line.strip() != "Next:"]


def closing(run: RunFiles) -> str:
    """Return the closing table that the command printed, as text; "" where there is none."""
    if run.command not in CLOSING or not run.summary:
        return ""
    from rich.console import Console

    out = StringIO()
    Console(file=out, width=120, highlight=False, color_system=None).print(CLOSING[run.command](run.summary, run.path))
    return out.getvalue()
