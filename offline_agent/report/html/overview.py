"""Overview of the page: what ran, and the closing table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from typing import Any

from offline_agent.report import (
    audit,
    build_prefs,
    calibrate,
    evaluate,
    import_logs,
    iterate,
    refine_grpo,
    rejudge,
    train_reward,
    training,
)
from offline_agent.report.html.reading import RunFiles
from offline_agent.report.html.text import number

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
    ("anchor", "runs"), ("offline", "runs"),
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


def closing(run: RunFiles) -> str:
    """Return the closing table that the command printed, as text; "" where there is none."""
    if run.command not in CLOSING or not run.summary:
        return ""
    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=120, highlight=False, color_system=None)
    shown = run.part("the closing table", lambda: CLOSING[run.command](run.summary, run.path), "")
    console.print(shown, crop=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
