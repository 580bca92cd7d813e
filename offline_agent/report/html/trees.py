"""Search trees of the page: the list of all tasks, and which trees are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offline_agent.report.html.reading import RunFiles, Sample, choose, in_turn
from offline_agent.report.html.tree_view import view

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
            cut = row["truncated"] and row["success"] is None
            word = "solved" if row["success"] else "failed" if row["success"] is False or cut else "unjudged"
            counts[word] += 1
    return out


def tasks(run: RunFiles) -> list[dict[str, Any]]:
    """Return one line for each task: its branches, its pairs, and whether it is in quarantine."""
    found, pairs, out = outcomes(run), Counter(str(row["tree_id"]) for row in run.pairs), []
    for name in [*found, *(name for name in run.quarantined_trees if name not in found)]:
        counts = found.get(name, {"solved": 0, "failed": 0, "unjudged": 0})
        out.append({"task": name, **counts, "pairs": pairs[name], "quarantined": run.quarantined_trees.get(name)})
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
