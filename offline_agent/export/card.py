"""Data card of an export: what is in it, of what run, by which rules, and what is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import offline_agent
from offline_agent.export.format import Format
from offline_agent.export.writing import Exported
from offline_agent.outgoing import code, masked, without_html
from offline_agent.store.manifest import read_manifest

NAME = "README.md"

LIMITS = (
    "Outcomes are those that the run's verifier or judge gave; what it cannot see, nobody checked. Prompts "
    "and tool outputs are as the environment wrote them, personal or licensed contents included: look before you "
    "publish."
)
"""Limits that all data of a run have."""


def card(name: str, format: Format, run_dir: Path, done: Exported) -> str:
    """Return the card as Markdown.

    Args:
        name: The format's name.
        format: The format.
        run_dir: The run that was exported.
        done: What was written.
    """
    manifest = read_manifest(run_dir)
    lines = [f"# {run_dir.resolve().name} for {name}", "", f"{format.about}.", "", "## Files", ""]
    lines += ["| file | rows | tasks | rows of the run | left out |", "|---|---|---|---|---|"]
    for part in format.parts:
        if part.file in done.tasks:
            left = sum(count for (file, _), count in done.refused.items() if file == part.file)
            rows, tasks = done.rows[part.file], len(done.tasks[part.file])
            lines.append(f"| `{part.file}` | {rows:,} | {tasks:,} | {done.read[part.file]:,} | {left:,} |")
        else:
            lines.append(f"| `{part.file}` | not written: the run has no such rows | – | 0 | 0 |")
    lines += ["", "## How it is loaded", "", format.load]
    lines += ["", "## Which tokens are trained on", "", format.trains]
    if done.rendered:
        told = "rows had messages alone: the tokenizer's template rendered them here"
        lines += ["", f"{done.rendered:,} {told}, so their ids are not proved to be what was sampled."]
    lines += ["", "## What is not in it", "", f"By the format: {format.lost}"]
    if done.refused:
        lines += ["", "Rows left out, by reason:", ""]
        lines += [f"- {count:,} of `{file}`: {code(reason)}" for (file, reason), count in done.refused.most_common()]
    lines += ["", "## Where it is from", "", *origin(manifest)]
    lines += ["", f"Rows are of the split `train` alone: a run that holds others is refused. {LIMITS}", ""]
    return without_html("\n".join(lines))


def origin(manifest: Mapping[str, Any]) -> list[str]:
    """Return a line for each fact about where data are from: run, version, environment, policy, judge, rules, hashes.

    Args:
        manifest: Manifest of the run; keys (`api_key` …) in its configuration are masked.
    """
    config = masked(manifest.get("config") or {})  # of a manifest that an earlier version wrote
    told = {
        "command": manifest.get("command"),
        "run": manifest.get("run_id"),
        "version": f"offline_agent {manifest.get('version')}, exported by {offline_agent.__version__}",
        "commit": manifest.get("git_commit"),
        "started": manifest.get("started"),
        "seed": config.get("seed"),
        "environment": config.get("env") and json.dumps(config["env"]),
        "policy": config.get("policy") and json.dumps(config["policy"]),
        "judge": config.get("judge") and json.dumps(config["judge"]),
        "logs": config.get("source") and json.dumps(config["source"]),
        "rules of pairs": config.get("pairs") and json.dumps(config["pairs"]),
        "hashes": manifest.get("hashes") and json.dumps(manifest["hashes"]),
    }
    return [f"- {name}: {code(value)}" for name, value in told.items() if value not in (None, "")]
