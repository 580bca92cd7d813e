"""Leaks of gold answers in the texts of tasks.

A gold answer is what a column of the task holds that is named like one (`GOLD`) or that the judge reads, and the final
answer of the expert. A short answer stands in many texts by chance, so a hit counts against decoys: the gold answers of
other tasks, searched for in the same text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from offline_agent.envs.checks.registry import Doubt, NotApplicable
from offline_agent.envs.checks.tools import ToolChecks
from offline_agent.envs.play import begin, faulty
from offline_agent.records import Task, Trajectory

GOLD = re.compile(
    r"^(gold|answers?|solution|ground_?truth|expected|reference|label)(_|$)|_(gold|answers?|solution|label)$", re.I
)
MOST_DECOYS = 20
LEAK = 0.2
"""Share of tasks, beyond chance, whose gold answer is shown, from which a leak is a fault and no coincidence."""
NO_GOLD = "no gold answer is known"
"""Beginning of the evidence of a leak check that was not made because nothing says what the gold answer is."""


class TextChecks(ToolChecks):
    """Checks of the texts that tasks show."""

    def leak(self, where: str) -> Iterator[str]:
        """No gold answer is in a text: `prompt`, `descriptions` or `errors`, methods of that name."""
        columns = (*self.settings.answers, *(() if self.spec.judge is None else self.spec.judge.reads))
        tasks = list(self.some())
        golds = {task.task_id: golds_of(task, self.plays.expert(task), columns) for task in tasks}
        if not any(golds.values()):
            there = ", ".join(dict.fromkeys(name for task in tasks for name in task.args)) or "none"
            raise NotApplicable(
                f"{NO_GOLD}: no column of the tasks (there are: {there}) is named like one or by answers=, and the "
                "expert's last turn is no answer; name it with answers=[COLUMN]"
            )
        found = find(golds, {task.task_id: getattr(self, where)(task) for task in tasks})
        self.measured |= {"tasks": found.tasks, "own": found.own, "decoys": round(found.decoys, 2)}
        if not found.own:
            return
        shown = f"the gold answer is shown in {found.own} of {found.tasks} tasks"
        detail = f"{shown}, by chance {found.decoys:.1f}: {found.example}"
        yield detail if found.own - found.decoys > LEAK * found.tasks else Doubt(detail)

    def prompt(self, task: Task) -> str:
        """Return what a policy reads before its first action."""
        with self.opened() as episode:
            start = begin(episode, task)
            return f"{start.system}\n{start.observation}"

    def descriptions(self, task: Task) -> str:
        """Return the descriptions of a task's tools."""
        with self.opened() as episode:
            return json.dumps(begin(episode, task).tools, ensure_ascii=False)

    def errors(self, task: Task) -> str:
        """Return the answers to faulty turns and refused calls."""
        with self.opened() as episode:
            episode.reset(task)
            answers = []
            for action in faulty(episode):
                answers.append(episode.step(action).observation or "")
                if episode.terminated:
                    episode.reset(task)
        played = [step for play in self.plays.chance(task) for step in play.steps if step.fault is not None]
        return "\n".join([*answers, *(step.observation or "" for step in played)])


class Leak(NamedTuple):
    """Hits of gold answers in texts of one kind.

    Attributes:
        tasks: Number of tasks that have a gold answer.
        own: Number of those whose own gold answer stands in their text.
        decoys: Mean number of tasks whose text holds another task's gold answer: what chance gives.
        example: One hit in words; "" where there is none.
    """

    tasks: int
    own: int
    decoys: float
    example: str


def golds_of(task: Task, expert: Trajectory | None, columns: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the gold answers of a task as normalised texts.

    Args:
        task: The task.
        expert: An episode of its expert; None where there is none.
        columns: Columns of the task that the judge reads.
    """
    found = [value for name, value in task.args.items() if name in columns or GOLD.search(name)]
    texts = [text for value in found for text in _texts(value)]
    if expert is not None and expert.verdict is not None and expert.verdict.success and expert.steps:
        last = expert.steps[-1].action
        if last.call is None and last.fault is None:
            texts.append(last.text)
    return tuple(dict.fromkeys(word for word in map(normal, texts) if len(word) > 1 or word.isdigit()))


def find(golds: Mapping[str, Sequence[str]], texts: Mapping[str, str]) -> Leak:
    """Return the hits of each task's gold answers in its text, and of those of other tasks.

    Args:
        golds: Gold answers by task id; a task without one is left out.
        texts: The text that is searched, by task id.
    """
    known = {name: _distinct(name, golds) for name in texts if golds.get(name)}
    known = {name: own for name, own in known.items() if own}
    folded = {name: f" {normal(texts[name])} " for name in known}
    own, chance, example = 0, 0.0, ""
    for name, words in known.items():
        hit = next((word for word in words if f" {word} " in folded[name]), None)
        if hit is not None:
            own += 1
            example = example or f"{name}: {hit!r:.80} in {_around(folded[name], hit)!r}"
        others = [other for other in known if other != name and not set(known[other]) & set(words)][:MOST_DECOYS]
        if others:
            chance += sum(any(f" {w} " in folded[name] for w in known[other]) for other in others) / len(others)
    return Leak(len(known), own, chance, example)


def normal(text: str) -> str:
    """Return a text in lower case with words and numbers alone, one space between them."""
    return " ".join(re.findall(r"[\w.]*\w", text.casefold()))


def _distinct(name: str, golds: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a task's gold answers without those that every other task has too: they tell nothing."""
    others = [set(words) for other, words in golds.items() if other != name]
    return [word for word in golds[name] if not others or not all(word in words for words in others)]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, str | int | float):
        yield str(value)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
    else:
        yield json.dumps(value, sort_keys=True, default=str)


def _around(text: str, hit: str) -> str:
    at = text.index(f" {hit} ")
    return text[max(0, at - 40) : at + len(hit) + 40].strip()
