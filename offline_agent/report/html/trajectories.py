"""Trajectories of the page: criticality of each step, and the shortest verified version beside the original."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from offline_agent.report.html.reading import RunFiles
from offline_agent.report.html.samples import Sample, choose, in_turn
from offline_agent.report.html.text import call_text, calls_of, number, percent, pretty, read, turn

RULE = (
    "They are taken in turn from three groups (successes with the shortest version of them that a replay verified; "
    "others whose steps were measured; the rest), in each task by task, while they fit."
)


def counts(run: RunFiles) -> list[tuple[str, int, str, str]]:
    """Return (origin, number, share solved, mean steps) of all trajectories."""
    out = []
    for origin, count in Counter(row["origin"] for row in run.trajectories).most_common():
        of = [row for row in run.trajectories if row["origin"] == origin]
        judged = [row["success"] for row in of if row["success"] is not None]
        solved = f"{percent(sum(judged) / len(judged))} of {len(judged):,} judged" if judged else "none judged"
        out.append((origin, count, solved, number(sum(row["steps"] for row in of) / count, 1)))
    return out


def sample(run: RunFiles, most_bytes: int, render: Callable[[dict[str, Any]], str]) -> Sample:
    """Return the trajectories of the page, each with its rendered `html`.

    Args:
        run: The run.
        most_bytes: Bytes that they may have.
        render: Renders one trajectory, with its shortest version where there is one.
    """
    shorter: dict[str, list[Mapping[str, Any]]] = {}
    for row in run.trajectories:
        if row["origin"] == "pruned":
            shorter.setdefault(row["task_id"], []).append(row)
    groups: dict[str, list[dict[str, Any]]] = {"shortened": [], "measured": [], "rest": []}
    for row in run.trajectories:
        if row["origin"] == "pruned":
            continue
        measured = any(value is not None for value in row["criticality"] or ())
        better = row["success"] and any(one["steps"] < row["steps"] for one in shorter.get(row["task_id"], ()))
        groups["shortened" if better else "measured" if measured else "rest"].append(row)
    others = [row for row in run.trajectories if row["origin"] != "pruned"]
    counter = iter(range(len(others)))

    def make(both: tuple[Mapping[str, Any], Mapping[str, Any]]) -> tuple[dict[str, Any], int]:
        row, version = both[1], None
        if row["success"] and row["task_id"] in shorter:
            versions = known.get(row["task_id"])
            if versions is None:
                versions = known[row["task_id"]] = run.whole([one["at"] for one in shorter[row["task_id"]]])
            version = _version_of(row, versions)
        shown = view(row, version, next(counter))
        html = render(shown)
        return {**shown, "html": html}, len(html.encode("utf-8", "replace"))

    known: dict[str, list[dict[str, Any]]] = {}
    order = in_turn({name: list(in_turn(_of_tasks(group))) for name, group in groups.items()})
    return choose(run.each_whole(order), len(others), most_bytes, make, RULE)


def _of_tasks(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    out: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        out.setdefault(row["task_id"], []).append(row)
    return out


def _version_of(row: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the shortest version whose actions are those of the row with some left out, in the same order."""
    ours = _actions(row)
    fitting = [one for one in versions if len(_actions(one)) < len(ours) and _kept(ours, _actions(one)) is not None]
    return min(fitting, key=lambda one: one["steps"], default=None)


def _actions(row: Mapping[str, Any]) -> list[str]:
    return [_action(message) for message in row["messages"] if message["role"] == "assistant"]


def _action(message: Mapping[str, Any]) -> str:
    calls = calls_of(message)
    if calls:
        return "; ".join(call_text(call["name"], call["arguments"]) for call in calls)
    return str(message.get("content") or "(empty turn)")


def _kept(ours: Sequence[str], theirs: Sequence[str]) -> list[bool] | None:
    """Return for each of our actions whether it is among theirs, in order; None where theirs are no part of ours."""
    out, at = [], 0
    for action in ours:
        same = at < len(theirs) and theirs[at] == action
        out.append(same)
        at += same
    return out if at == len(theirs) else None


def view(row: Mapping[str, Any], version: Mapping[str, Any] | None, number_: int) -> dict[str, Any]:
    """Return what the template of a trajectory needs."""
    actions = _actions(row)
    kept = None if version is None else _kept(actions, _actions(version))
    critical = row["criticality"] or [None] * len(actions)
    steps = []
    for at, action in enumerate(actions):
        value = critical[at] if at < len(critical) else None
        left = kept is not None and not kept[at]
        says = f"step {at + 1}: {action}"
        says += "" if value is None else f"; criticality {number(value)}"
        says += "; left out in the shortest version" if left else ""
        steps.append({"value": None if value is None else round(value, 3), "left_out": left, "says": says})
    verdict = read(row["verdict"])
    return {
        "number": number_,
        "task": row["task_id"],
        "origin": row["origin"],
        "success": row["success"],
        "reward": number(row["reward"]),
        "ended": "cut" if row["truncated"] else "ended",
        "measured": any(step["value"] is not None for step in steps),
        "steps": steps,
        "turns": [turn(message) for message in row["messages"]],
        "shortest": None if version is None else [turn(message) for message in version["messages"]],
        "shortest_steps": None if version is None else version["steps"],
        "verdict": "" if verdict is None else pretty(verdict),
    }
