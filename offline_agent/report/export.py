"""The data card of an export: what is in it, of what, by which rules, and what was left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import offline_agent
from offline_agent.config.build_prefs import TasksSection
from offline_agent.envs.base import EnvSpec
from offline_agent.formats.row import PLAYED, Export, Part
from offline_agent.formats.trainers.tasks import TASKS
from offline_agent.outgoing import code, masked, without_html
from offline_agent.store.manifest import read_manifest

LOOK = (
    "Prompts and tool outputs are as the environment wrote them, personal or licensed contents included: look before "
    "you publish."
)
LIMITS = f"Outcomes are those that the run's verifier or judge gave; what it cannot see, nobody checked. {LOOK}"


@dataclass
class Exported:
    """Counts of one file.

    Attributes:
        part: The file; it is not written where the run has no rows for it.
        read: Rows of the run.
        rows: Rows of the file.
        tasks: Rows by task.
        refused: Rows that the format cannot carry, by reason.
        rendered: Rows whose ids were made here of messages.
    """

    part: Part
    read: int = 0
    rows: int = 0
    tasks: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    rendered: int = 0

    def told(self) -> list[str]:
        """Return its name and its counts: rows, their tasks, rows of the run, and those left out."""
        counts = self.rows, len(self.tasks), self.read, sum(self.refused.values())
        return [self.part.file, *(f"{count:,}" for count in counts)]


def tasks_card(name: str, format: Export, spec: EnvSpec, tasks: TasksSection, done: Sequence[Exported]) -> str:
    """Return the data card of tasks as Markdown."""
    chosen = tasks.model_dump(mode="json")
    facts = {"environment": json.dumps(masked(spec.identity)), "tasks": json.dumps(chosen)}
    where = [f"- {name}: {code(value)}" for name, value in facts.items()]
    where += ["", f"exported by offline_agent {offline_agent.__version__}. Tasks are of the split `{chosen['split']}`."]
    return _card(name, format, f"Tasks of {spec.name}", done, [*where, LOOK])


def card(name: str, format: Export, run_dir: Path, done: Sequence[Exported]) -> str:
    """Return the data card as Markdown: what is in an export, of what run, by which rules, and what is not.

    Args:
        name: The format's name.
        format: The format.
        run_dir: The run that was exported.
        done: What was written.
    """
    where = [*origin(read_manifest(run_dir)), ""]
    if format.parts[0].rows != PLAYED:
        where += ["Rows are of the split `train` alone: a run that holds others is refused."]
    where += [LIMITS]
    return _card(name, format, run_dir.resolve().name, done, where)


def _card(name: str, format: Export, title: str, done: Sequence[Exported], where: Sequence[str]) -> str:
    read = "rows of the run" if format.parts[0].rows != TASKS else "tasks read"
    lines = [f"# {title} for {name}", "", f"{format.about}.", "", "## Files", ""]
    lines += [f"| file | rows | tasks | {read} | left out |", "|---|---|---|---|---|"]
    lines += [f"| `{name}` | {' | '.join(counts)} |" for name, *counts in (file.told() for file in done)]
    lines += ["", "## How it is loaded", "", format.load]
    lines += ["", "## Which tokens are trained on", "", format.trains]
    if rendered := sum(file.rendered for file in done):
        told = "rows had messages alone: the tokenizer's template rendered them here"
        lines += ["", f"{rendered:,} {told}, so their ids are not proved to be what was sampled."]
    lines += ["", "## What is not in it", "", f"By the format: {format.lost}"]
    if any(file.refused for file in done):
        lines += ["", "Rows left out, by reason:", ""]
        for file in done:
            lines += [f"- {n:,} of `{file.part.file}`: {code(reason)}" for reason, n in file.refused.most_common()]
    lines += ["", "## Where it is from", "", *where, ""]
    return without_html("\n".join(lines))


def origin(manifest: Mapping[str, Any]) -> list[str]:
    """Return a line for each fact about where data are from: run, version, environment, policy, judge, rules, hashes.

    Args:
        manifest: Manifest of the run; keys (`api_key` …) in its configuration are masked.
    """
    config = masked(manifest.get("config") or {})  # of a manifest that an earlier version wrote
    named = {"environment": "env", "policy": "policy", "judge": "judge", "logs": "source", "rules of pairs": "pairs"}
    hashes = manifest.get("hashes")
    told = {
        "command": manifest.get("command"),
        "run": manifest.get("run_id"),
        "version": f"offline_agent {manifest.get('version')}, exported by {offline_agent.__version__}",
        "commit": manifest.get("git_commit"),
        "started": manifest.get("started"),
        "seed": config.get("seed"),
        **{name: config.get(key) and json.dumps(config[key]) for name, key in named.items()},
        "turns named by a model, logged by nobody": hashes and hashes.get("labels"),
        "hashes": hashes and json.dumps(hashes),
    }
    return [f"- {name}: {code(value)}" for name, value in told.items() if value not in (None, "")]
