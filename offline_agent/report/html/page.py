"""The page: report.html of a run directory, one file with everything in it; reads without a network or scripts.

Of search trees it has the list of all tasks, and those that fit.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.outgoing import visible
from offline_agent.report import build_prefs, evaluate, import_logs, refine_grpo
from offline_agent.report.html import evaluation, pairs, text, training
from offline_agent.report.html.reading import RunFiles, Sample, choose, in_turn
from offline_agent.report.html.text import pretty
from offline_agent.report.html.tree_view import view
from offline_agent.report.judging import show_audit, show_rejudge
from offline_agent.report.training import show_loop, show_reward, show_training
from offline_agent.runner.terminal import console
from offline_agent.store.files import write_text

if TYPE_CHECKING:
    from jinja2 import Environment

RULE = (
    "Trees are taken in turn from four groups (successes and failures; no success; successes alone; in quarantine), in "
    "each those with most pairs first, while they fit."
)


def outcomes(run: RunFiles) -> dict[str, dict[str, int]]:
    """Return by task the number of its branches that are `solved`, `failed` and `unjudged`, in order of the tables."""
    out: dict[str, dict[str, int]] = {}
    for row in run.trajectories:
        if row["origin"] in ("search", "rollout"):
            counts = out.setdefault(row["task_id"], {"solved": 0, "failed": 0, "unjudged": 0})
            counts[_word(row["success"], row["truncated"])] += 1
    return out


def _word(success: bool | None, truncated: bool) -> str:
    return "solved" if success else "failed" if success is False or truncated else "unjudged"


def tasks(run: RunFiles) -> list[dict[str, Any]]:
    """Return one line for each tree: its branches, its pairs, and whether it is in quarantine.

    A task that logs begin in several ways has several; the first has the task's name, the others have their own.
    """
    found, counted, out = outcomes(run), Counter(str(row["tree_id"]) for row in run.pairs), []
    for name in run.tree_ids() if found else ():
        tree = None if name in found or name in run.quarantined_trees else run.tree(name)
        if tree is not None:
            ends = [node for node in tree["nodes"] if node.get("terminated") or node.get("cut")]
            words = Counter(_word((end["verdict"] or {}).get("success"), bool(end["cut"])) for end in ends)
            found[name] = {word: words[word] for word in ("solved", "failed", "unjudged")}
            of = found.get(tree["graph"]["task"]["task_id"], {})
            of |= {word: of[word] - words[word] for word in of}
    for name in [*found, *(name for name in run.quarantined_trees if name not in found)]:
        counts = found.get(name, {"solved": 0, "failed": 0, "unjudged": 0})
        out.append({"task": name, **counts, "pairs": counted[name], "quarantined": run.quarantined_trees.get(name)})
    return out


def sample(
    run: RunFiles,
    listed: Sequence[Mapping[str, Any]],
    most_bytes: int,
    render: Callable[[dict[str, Any]], str],
    shown_pairs: Mapping[tuple[str, int], Sequence[int]],
) -> Sample:
    """Return the trees of the page, each with its rendered `html`.

    Args:
        run: The run.
        listed: From `tasks`.
        most_bytes: Bytes that they may have.
        render: Renders one tree.
        shown_pairs: Numbers of the pairs that the page shows, by tree and node.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {"mixed": [], "none": [], "all": [], "quarantined": []}
    for line in listed:
        other = line["failed"] + line["unjudged"]
        mixed = "none" if not line["solved"] else "mixed" if other else "all"
        groups["quarantined" if line["quarantined"] else mixed].append(line)
    ordered = {name: sorted(group, key=lambda line: -line["pairs"]) for name, group in groups.items()}
    of_node = run.pairs_at()

    def make(line: Mapping[str, Any], number: int) -> dict[str, Any] | None:
        data = run.tree(line["task"])
        return None if data is None else {**view(data, number, of_node, shown_pairs), **line}

    return choose(in_turn(ordered), len(listed), most_bytes, make, render, RULE)


NAME = "report.html"
BUDGET = {"trees": 3_200_000, "pairs": 1_200_000, "evaluation": 1_000_000}
"""Bytes that the samples of each tab may have; the rest of the page is small, so that it stays below 10 MB."""
LINES = 2_000
"""Lines of the tables that list tasks; those of more tasks list the first, and say so."""


@dataclass(frozen=True)
class Written:
    """A page that was written.

    Attributes:
        path: The file.
        size: Bytes.
        shown: Number of items shown and number of all, by tab.
        faults: One sentence for each file of the run that could not be read.
    """

    path: Path
    size: int
    shown: Mapping[str, tuple[int, int]]
    faults: Sequence[str]


def write(run_dir: Path, out: Path | None = None) -> Written:
    """Write the page of a run.

    Args:
        run_dir: The run directory, of any command; it may be unfinished.
        out: The file; None = report.html in the run directory.

    Raises:
        DataError: It is no run directory, or the file cannot be written.
    """
    run = RunFiles(run_dir)
    run.manifest  # noqa: B018 - raises where this is no run
    html, shown = _render(run)
    path = write_text(run_dir / NAME if out is None else out, html)
    return Written(path, path.stat().st_size, shown, tuple(dict.fromkeys(run.faults)))


def _render(run: RunFiles) -> tuple[str, dict[str, tuple[int, int]]]:
    templates = _templates()

    def render(name: str) -> Callable[[dict[str, Any]], str]:
        template = templates.get_template(f"{name}.jinja")
        return lambda view: template.render(one=view)

    samples: dict[str, Sample] = {}
    tabs: list[tuple[str, str]] = [("overview", "Overview")]
    views: dict[str, Any] = {"pairs": None, "trees": None, "evaluation": None}
    if run.pairs:
        with run.noting():
            samples["pairs"] = pairs.sample(run, BUDGET["pairs"], render("pair"))
            views["pairs"] = {"counts": pairs.counts(run.pairs)}
    if (run.path / "trees").is_dir() and (listed := tasks(run)):
        at: dict[tuple[str, int], list[int]] = {}
        for pair in samples["pairs"].items if "pairs" in samples else ():
            if pair["node"] is not None:
                at.setdefault((str(pair["tree"]), pair["node"]), []).append(pair["number"])
        samples["trees"] = sample(run, listed, BUDGET["trees"], render("tree"), at)
        numbers = {tree["task"]: tree["number"] for tree in samples["trees"].items}
        views["trees"] = {"tasks": listed[:LINES], "total": len(listed), "numbers": numbers}
    charts = run.part("the curves", lambda: training.charts(run), [])
    if run.attempts:
        players = evaluation.players(run)
        with run.noting():
            samples["evaluation"] = evaluation.sample(players, BUDGET["evaluation"], render("task"))
            by_task = evaluation.by_task(players)
            views["evaluation"] = {
                "failures": evaluation.failures(players), "labels": [player.label for player in players],
                "tasks": by_task[:LINES], "total": len(by_task),
            }  # fmt: skip
    present = {**views, "training": charts}
    tabs += [(name, name.capitalize()) for name in ("trees", "pairs", "training", "evaluation") if present[name]]
    script, style = _asset("page.js"), _asset("page.css")
    html = templates.get_template("page.html.jinja").render(
        title=f"{run.command} {run.path.resolve().name}", run=run, tabs=tabs, views=views, samples=samples,
        facts=facts(run), config=pretty(run.config), closing=closing(run),
        reasons=run.reasons(), stages=list(training.stages(run)), charts=charts, faults=run.faults,
        script=script, style=style,
        script_hash=_hash(script),
    )  # fmt: skip
    return html, {name: (len(sample.items), sample.total) for name, sample in samples.items()}


@cache
def _templates() -> Environment:
    """Return the templates, compiled once. Every value is spelled out by `visible`, and escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def safe(value: Any) -> Any:
        return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    made = Environment(
        loader=PackageLoader("offline_agent.report.html"), autoescape=True, finalize=safe, trim_blocks=True,
        lstrip_blocks=True, undefined=StrictUndefined,
    )  # fmt: skip
    made.filters |= {"brief": text.brief, "n": text.number, "rendered": Markup}
    return made


def _asset(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """Return the hash by which the page allows its own script and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


CLOSING: dict[str, Callable[[Mapping[str, Any], Any], Any]] = {
    "audit": show_audit,
    "build_prefs": build_prefs.show,
    "evaluate": evaluate.show,
    "import_logs": import_logs.show,
    "iterate": show_loop,
    "refine_grpo": refine_grpo.show,
    "rejudge": show_rejudge,
    "train_dpo": show_training,
    "train_reward": show_reward,
    "train_sft": show_training,
}
"""The closing table of each command."""


def facts(run: RunFiles) -> list[tuple[str, str]]:
    """Return what ran, when and where; its configuration is shown beside it."""
    manifest, machine = run.manifest, run.manifest.get("machine") or {}
    env, policy = manifest.get("env") or {}, manifest.get("policy") or {}
    out = {
        "status": f"{manifest.get('status')}" + (f": {manifest['error']}" if manifest.get("error") else ""),
        "environment": " ".join(str(env[key]) for key in ("name", "version") if env.get(key)),
        "policy": ", ".join(str(policy[key]) for key in ("kind", "model") if policy.get(key)),
        "started, ended": f"{manifest.get('started')}, {manifest.get('ended') or 'not ended'}",
        "gone on with": f"{len(manifest.get('resumed') or ())} times" if manifest.get("resumed") else "",
        "machine": f"{machine.get('host')}, {machine.get('cores')} cores, Python {machine.get('python')}",
        "code": f"version {manifest.get('version')}, commit {str(manifest.get('git_commit'))[:12]}",
    }
    return [(name, told) for name, told in out.items() if told]


def closing(run: RunFiles) -> str:
    """Return the closing table that the command printed, as text; "" where there is none."""
    if run.command not in CLOSING or not run.summary:
        return ""
    out = StringIO()
    shown = run.part("the closing table", lambda: CLOSING[run.command](run.summary, run.path), "")
    console(file=out, width=120, color_system=None).print(shown, crop=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
