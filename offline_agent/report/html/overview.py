"""Overview of the page: what ran, its figures with intervals, its cost by part, what was refused, what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from typing import Any

from offline_agent.report import build_prefs, cuts, evaluate, import_logs, iterate, refine_grpo
from offline_agent.report.findings import findings
from offline_agent.report.html.evaluation import figures as modes_of
from offline_agent.report.html.lineage import interval
from offline_agent.report.html.reading import RunFiles
from offline_agent.report.html.text import number, percent
from offline_agent.runner import training
from offline_agent.runner.next_steps import command, evaluation

Figure = tuple[str, str, float | None, float | None, float | None, str]
"""Name, value as text, value and interval in [0, 1] for the bar (None = no bar), note."""

CLOSING: dict[str, Callable[[Mapping[str, Any], Any], Any]] = {
    "build_prefs": build_prefs.show,
    "evaluate": evaluate.show,
    "import_logs": import_logs.show,
    "iterate": iterate.show,
    "refine_grpo": refine_grpo.show,
    "train_dpo": training.show,
    "train_sft": training.show,
}
"""The closing table of each command."""


def facts(run: RunFiles) -> list[tuple[str, str]]:
    """Return what ran, on what: command, environment, policy, tasks, seed, times, machine, code."""
    manifest, config = run.manifest, run.config
    machine = manifest.get("machine") or {}
    policy, env = manifest.get("policy") or {}, manifest.get("env") or {}
    tasks, model = config.get("tasks") or {}, config.get("model")
    version = f"version {env['version']}" if env.get("version") else None
    out = [
        ("command", run.command),
        ("status", f"{manifest.get('status')}" + (f": {manifest['error']}" if manifest.get("error") else "")),
        ("environment", " ".join(str(part) for part in (env.get("name"), version) if part)),
        ("policy", ", ".join(str(part) for part in (policy.get("kind"), policy.get("model")) if part)),
        ("model", str(model.get("path") or "embedded default") if isinstance(model, Mapping) else ""),
        ("tasks", _tasks(tasks, run.summary)),
        ("seed", str(config.get("seed"))),
        ("started, ended", f"{manifest.get('started')}, {manifest.get('ended') or 'not ended'}"),
        ("gone on with", f"{len(manifest['resumed'])} times" if manifest.get("resumed") else ""),
        ("machine", f"{machine.get('host')}, {machine.get('cores')} cores, Python {machine.get('python')}"),
        ("code", f"version {manifest.get('version')}, commit {str(manifest.get('git_commit'))[:12]}"),
    ]  # fmt: skip
    return [(name, text) for name, text in out if text]


def _tasks(tasks: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    count = summary.get("tasks")
    parts = [number(count) if isinstance(count, int) else "", str(tasks.get("split") or "")]
    return " of split ".join(part for part in parts if part)


def figures(run: RunFiles) -> list[Figure]:
    """Return the main figures of a run; those of a command that is not known are the numbers of its summary."""
    known = {
        "build_prefs": _of_search, "evaluate": _of_evaluation, "import_logs": _of_logs, "iterate": _of_loop,
        "refine_grpo": _of_training, "train_dpo": _of_training, "train_sft": _of_training,
    }  # fmt: skip
    if not run.summary:
        return []
    return list(known.get(run.command, _numbers)(run.summary))


def _of_search(summary: Mapping[str, Any]) -> Iterator[Figure]:
    success, tasks = summary["success"], summary["tasks"]
    note = "Wilson's interval over tasks, as if the attempts at one task were all alike: it is wide rather than narrow"
    for name, key, about in (
        ("success, plain policy, sampled", "plain_sampled", f"{success['plain_rollouts']} rollouts; {note}"),
        ("success, plain policy, greedy", "plain_greedy", "one rollout a task"),
        ("success, best of search", "best_of_search", "tasks with a verified success in their tree"),
    ):
        share = success[key]
        yield _share(name, share, *interval(share, tasks), about)
    pairs = ", ".join(f"{kind} {count:,}" for kind, count in summary["pairs"].items())
    yield "pairs", number(summary["pairs_total"]), None, None, None, pairs
    paired = summary["tasks_with_pairs"] / tasks if tasks else None
    yield _share("tasks with pairs", paired, *interval(paired, tasks), f"{summary['tasks_with_pairs']} of {tasks}")
    about = f"of {summary['trajectories']:,} trajectories"
    yield "verified successes for training", number(summary["filtered"]), None, None, None, about
    about = f"{summary['nodes']:,} nodes"
    yield "simulations", number(summary["simulations"]), None, None, None, about


def _of_evaluation(summary: Mapping[str, Any]) -> Iterator[Figure]:
    for one in modes_of(summary):
        note = f"{one['attempts']} attempts, {one['steps']} steps each"
        yield f"success, {one['policy']}, {one['mode']}", one["words"], one["mean"], one["low"], one["high"], note


def _of_logs(summary: Mapping[str, Any]) -> Iterator[Figure]:
    for name in ("records", "episodes", "tasks", "judged", "pairs_total", "filtered", "trajectories"):
        if isinstance(summary.get(name), int):
            yield name.replace("_", " "), number(summary[name]), None, None, None, ""


def _of_loop(summary: Mapping[str, Any]) -> Iterator[Figure]:
    for name, key in (("success at the start", "start"), ("success at the end", "end")):
        found = summary[key]
        yield _share(name, found["mean"], found["low"], found["high"], "held-out tasks")
    yield "iterations", number(len(summary["iterations"])), None, None, None, summary["stopped"] or ""


def _of_training(summary: Mapping[str, Any]) -> Iterator[Figure]:
    made = summary["training"]
    first, last = made["loss_first"], made["loss_last"]
    yield "loss", f"{number(first, 4)} → {number(last, 4)}", None, None, None, "means at both ends"
    for where in (("first", "last"), ("rounds_first", "rounds_last")):
        before, after = (made.get(name) or {} for name in where)
        for name in ("accuracy", "success_mean", "reward_mean"):
            if name in after:
                words = f"{number(before.get(name), 3)} → {number(after[name], 3)}"
                yield name.replace("_", " "), words, None, None, None, "means at both ends"
    yield "updates", number(made["updates"]), None, None, None, f"{made['seconds']:.1f} s"
    model = summary["model"]
    yield "weights trained", number(model["trained"]), None, None, None, f"of {model['parameters']:,}"


def _numbers(summary: Mapping[str, Any], prefix: str = "") -> Iterator[Figure]:
    for name, value in summary.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name} / ")
        elif isinstance(value, int | float) and name != "schema_version":
            yield f"{prefix}{name}", number(value), None, None, None, ""


def _share(name: str, share: float | None, low: float | None, high: float | None, note: str) -> Figure:
    between = "" if low is None or high is None else f" ({percent(low)} to {percent(high)})"
    return name, percent(share) + between, share, low, high, note


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
