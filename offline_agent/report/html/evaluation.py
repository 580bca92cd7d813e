"""Evaluations of the page: each task by policy, failures by how they ended, attempts to be laid side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.report.html.reading import RunFiles, Sample, choose, in_turn
from offline_agent.report.html.text import number, pretty, read, turn

RULE = (
    "Tasks are taken in turn from four groups (policies differ; attempts differ; none solved; all solved), in the "
    "order of their names, while they fit."
)


class Player:
    """One policy's attempts.

    Args:
        label: Its name on the page.
        run: The run that holds them.
        policy: Its name in the table.

    Attributes:
        attempts: Its rows, in order.
    """

    def __init__(self, label: str, run: RunFiles, policy: str) -> None:
        self.label, self.run = label, run
        self.attempts = [row for row in run.attempts if row["policy"] == policy]
        table = "trajectories" if policy == "candidate" else f"trajectories_{policy}"
        by_task: dict[str, list[dict[str, Any]]] = {}
        for row in run.light(table, ("task_id", "steps", "success")):
            by_task.setdefault(row["task_id"], []).append(row)
        self._trajectories = by_task

    def of(self, task: str) -> list[tuple[dict[str, Any], tuple[str, str, int] | None]]:
        """Return the attempts at a task, each with the place of its trajectory; None where it cannot be told.

        The tables are in the same order, but a trajectory that failed its certificate is not there.
        """
        attempts = [row for row in self.attempts if row["task_id"] == task]
        acted = [row for row in attempts if row["steps"] and row["mode"] != "best_of_n"]
        there = self._trajectories.get(task, [])
        same = len(acted) == len(there) and all(
            (a["steps"], a["success"]) == (b["steps"], b["success"]) for a, b in zip(acted, there, strict=True)
        )
        places = {id(a): b["at"] for a, b in zip(acted, there, strict=False)} if same else {}
        return [(row, places.get(id(row))) for row in attempts]


def players(run: RunFiles) -> list[Player]:
    """Return the policies of an evaluation."""
    present = list(dict.fromkeys(row["policy"] for row in run.attempts))
    out = [Player(_label(run, policy), run, policy) for policy in present]
    names = Counter(player.label for player in out)
    for number_, player in enumerate(out):
        if names[player.label] > 1:
            player.label = f"{player.label} [{number_ + 1}]"
    return [player for player in out if player.attempts]


def _label(run: RunFiles, policy: str) -> str:
    section = run.config.get("policy") if policy == "candidate" else (run.summary.get("against") or {}).get("policy")
    model = (section or {}).get("model")
    name = (section or {}).get("name") or (section or {}).get("kind") or "hf"
    if model:
        path = Path(str(model))
        model = path.parent.name if path.name == "model" else path.name
    return f"{policy}: {model}" if model else f"{policy}: {name}"


def end_of(row: Mapping[str, Any]) -> str:
    """Return how an attempt ended, in words: the group of the table of failures."""
    if row["success"]:
        return "solved"
    if row["success"] is None:
        return f"unscored: {str(row['error'] or 'no reason').splitlines()[0]}"
    if row["cut_by"]:
        return f"cut by {row['cut_by']}"
    return f"ended by itself, judged {number(row['reward'])}"


def failures(all_players: Sequence[Player]) -> list[dict[str, Any]]:
    """Return the groups of attempts that were not solved: how they ended, counts by policy, tasks; most first."""
    groups: dict[str, dict[str, Any]] = {}
    for player in all_players:
        for row in player.attempts:
            end = end_of(row)
            if end != "solved":
                group = groups.setdefault(end, {"end": end, "counts": Counter(), "tasks": {}})
                group["counts"][player.label] += 1
                group["tasks"].setdefault(row["task_id"], None)
    out = sorted(groups.values(), key=lambda group: -sum(group["counts"].values()))
    return [{**group, "tasks": list(group["tasks"])} for group in out]


def by_task(all_players: Sequence[Player]) -> list[dict[str, Any]]:
    """Return for each task the outcomes of every policy, as characters: 1 solved, 0 not, ? unscored."""
    lines: dict[str, dict[str, list[str]]] = {}
    for player in all_players:
        for row in player.attempts:
            mark = "?" if row["success"] is None else "1" if row["success"] else "0"
            lines.setdefault(row["task_id"], {}).setdefault(player.label, []).append(mark)
    return [{"task": task, "marks": marks} for task, marks in lines.items()]


def sample(all_players: Sequence[Player], most_bytes: int, render: Callable[[dict[str, Any]], str]) -> Sample:
    """Return the tasks whose attempts are shown, each with its rendered `html`."""
    groups: dict[str, list[str]] = {"policies": [], "attempts": [], "none": [], "all": []}
    listed = by_task(all_players)
    for line in listed:
        groups[_group(line["marks"])].append(line["task"])

    def view(task: str, number: int) -> dict[str, Any]:
        attempts = [one for player in all_players for one in _attempts(player, task)]
        return {"task": task, "number": number, "attempts": attempts}

    ordered = {name: sorted(group) for name, group in groups.items()}
    return choose(in_turn(ordered), len(listed), most_bytes, view, render, RULE)


def _group(marks: Mapping[str, Sequence[str]]) -> str:
    rates = {marks_.count("1") / len(marks_) for marks_ in marks.values()}
    if len(rates) > 1:
        return "policies"
    rate = rates.pop()
    return "none" if rate == 0 else "all" if rate == 1 else "attempts"


def _attempts(player: Player, task: str) -> Iterator[dict[str, Any]]:
    for row, place in player.of(task):
        messages = None
        if place is not None:
            (whole,) = player.run.whole([place])
            messages = [turn(message) for message in whole["messages"]]
        verdict = read(row["verdict"])
        yield {
            "who": f"{player.label}, {row['mode']} {row['attempt']}",
            "success": row["success"],
            "end": end_of(row),
            "steps": row["steps"],
            "turns": messages,
            "verdict": "" if verdict is None else pretty(verdict),
        }
