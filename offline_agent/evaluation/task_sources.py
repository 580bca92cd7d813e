"""Sources of new tasks for `iterate`: functions that propose tasks from what was searched, and what they are given."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from offline_agent import catalog
from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError
from offline_agent.evaluation.agreement import find_trees
from offline_agent.evaluation.curriculum import success_rates
from offline_agent.preferences.pairs.hindsight import goal_key, reached_goals, why_no_hindsight
from offline_agent.preferences.records import Goal
from offline_agent.records import Action
from offline_agent.rollouts.attempts import Known
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.run_directory import read_tree


class Played(NamedTuple):
    """A task that was searched.

    Attributes:
        args: Arguments of `reset`.
        successes, attempts: Of the policy's own rollouts (`curriculum.success_rates`).
        goals: Tasks, as arguments of `reset`, that failed attempts at it fulfilled; each once.
    """

    args: dict[str, Any]
    successes: int
    attempts: int
    goals: list[dict[str, Any]]


class History(NamedTuple):
    """What was searched so far.

    Attributes:
        played: The tasks, in the order in which they were searched first.
        known: Results by task id.
        reached: Goals of failed attempts by the key of their task: as the environment names it, and the actions.
        solved: Ids of the tasks that any attempt solved, those of a search included.
    """

    played: list[Played]
    known: dict[str, Known]
    reached: dict[str, tuple[Goal, list[Action]]]
    solved: set[str]


Source = Callable[[Any], Iterable[Mapping[str, Any]]]
"""Returns candidate tasks, as arguments of `reset`, the best first, from all that was searched: a `Sequence[Played]`,
empty at first. `proposer` is given the run directory in which the policy proposed."""


def failures(played: Sequence[Played]) -> Iterator[Mapping[str, Any]]:
    """Yield the tasks that failed attempts fulfilled, in turn of each task, those solved about half of the time first.

    Tasks from failures: WebRL (arXiv 2411.02337, section 2.2), where a language model varies them. Here they are goals
    reached in place of others, as in hindsight replay (Andrychowicz et al. 2017), so each can be proved by a replay.
    """
    ranked = sorted(played, key=lambda one: -Known(one.successes, one.attempts).learnability)
    for goals in itertools.zip_longest(*(one.goals for one in ranked)):
        yield from (goal for goal in goals if goal is not None)


def load_source(name: str, spec: EnvSpec) -> Source:
    """Return the source of that name; raises ConfigError where there is none, or the environment does not suit it."""
    source: Source = catalog.resolve("source", name, "curriculum.source")
    if source is failures and (reason := why_no_hindsight(spec)) is not None:
        raise ConfigError(f"curriculum.source: got failures, but {reason}; name module:function of your own, or null")
    if name == "proposer":
        EnvSpec.load(f"propose:{spec.path}", spec.args, python=spec.python)  # raises where nothing can be proposed
    return source


def plain(spec: EnvSpec, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments without the `task_id` that is a name alone: where `reset` has no parameter of that name."""
    named = "task_id" in inspect.signature(spec.cls.reset).parameters  # type: ignore[attr-defined]
    return {name: value for name, value in args.items() if named or name != "task_id"}


def history(spec: EnvSpec, run_dirs: Sequence[Path]) -> History:
    """Return what runs of `build_prefs` searched, oldest first, but for trees in quarantine.

    Raises:
        DataError: A tree cannot be read.
    """
    past = History([], success_rates(run_dirs), {}, set())
    found: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {}
    for file in find_trees([str(run_dir) for run_dir in run_dirs], []) if run_dirs else ():
        tree = tree_from_json(read_tree(file))
        args, goals = found.setdefault(tree.task.task_id, (plain(spec, tree.task.args), {}))
        for end, goal in reached_goals(tree):
            key = goal_key(task := {**args, **goal})
            goals[key] = task
            past.reached.setdefault(key, (goal, [step.action for step in tree.steps(end)]))
        if any(end.verdict is not None and end.verdict.success for end in tree.terminals()):
            past.solved.add(tree.task.task_id)
    past.played.extend(Played(args, *past.known[name], list(goals.values())) for name, (args, goals) in found.items())
    return past
