"""Sources of new tasks for `iterate`, and the checks that every proposed task must pass, whoever proposed it."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from offline_agent import catalog
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import ScriptedPlayer
from offline_agent.envs.settings import LimitsSection
from offline_agent.errors import ConfigError, EnvironmentFault, did_you_mean, ends_the_run
from offline_agent.evaluation.curriculum import success_rates
from offline_agent.preferences.pairs.hindsight import Hindsight, goal_key, reached_goals, why_no_hindsight
from offline_agent.preferences.records import Goal, Refusal
from offline_agent.preferences.replayer import Replayer
from offline_agent.records import Action, Task
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


Source = Callable[[Sequence[Played]], Iterable[Mapping[str, Any]]]
"""Returns candidate tasks, as arguments of `reset`, the best first, from all that was searched: at first nothing."""


def failures(played: Sequence[Played]) -> Iterator[Mapping[str, Any]]:
    """Yield the tasks that failed attempts fulfilled, in turn of each task, those solved about half of the time first.

    Tasks from failures: WebRL (arXiv 2411.02337, section 2.2), where a language model varies them. Here they are goals
    reached in place of others, as in hindsight replay (Andrychowicz et al. 2017), so each can be proved by a replay.
    """
    ranked = sorted(played, key=lambda one: -Known(one.successes, one.attempts).learnability)
    for goals in itertools.zip_longest(*(one.goals for one in ranked)):
        yield from (goal for goal in goals if goal is not None)


SOURCES: dict[str, Source] = {"failures": failures}


def load_source(name: str, spec: EnvSpec) -> Source:
    """Return the source of that name, or the function at `module:function`.

    Raises:
        ConfigError: There is none, it cannot be called with one argument, or the environment does not suit it.
    """
    if name == "failures" and (reason := why_no_hindsight(spec)) is not None:
        raise ConfigError(f"curriculum.source: got failures, but {reason}; name module:function of your own, or null")
    if name not in SOURCES and ":" not in name:
        raise ConfigError(
            f"curriculum.source: got {name!r}, allowed: {', '.join(SOURCES)}, module:function of your own, or null."
            f"{did_you_mean(name, SOURCES)}"
        )
    source: Source = SOURCES[name] if name in SOURCES else catalog.load("curriculum.source", name)
    try:
        inspect.signature(source).bind(())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"curriculum.source: {name} cannot be called as source(played): {error}. It takes a list of "
            "evaluation.task_sources.Played and returns dicts of reset's arguments"
        ) from error
    return source


@dataclass(frozen=True, slots=True)
class History:
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


def plain(spec: EnvSpec, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments without the `task_id` that is a name alone: where `reset` has no parameter of that name."""
    named = "task_id" in inspect.signature(spec.cls.reset).parameters  # type: ignore[attr-defined]
    return {name: value for name, value in args.items() if named or name != "task_id"}


def history(spec: EnvSpec, run_dirs: Sequence[Path]) -> History:
    """Return what runs of `build_prefs` searched, oldest first; raises DataError where a tree cannot be read."""
    known = success_rates(run_dirs)
    found: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {}
    past = History([], known, {}, set())
    for file in (file for run_dir in run_dirs for file in sorted((run_dir / "trees").glob("*.json.gz"))):
        tree = tree_from_json(read_tree(file))
        name = tree.task.task_id
        args, goals = found.setdefault(name, (plain(spec, tree.task.args), {}))
        for end, goal in reached_goals(tree):
            key = goal_key(task := {**args, **goal})
            goals[key] = task
            past.reached.setdefault(key, (goal, [step.action for step in tree.steps(end)]))
        if any(end.verdict is not None and end.verdict.success for end in tree.terminals()):
            past.solved.add(name)
    past.played.extend(Played(args, *known[name], list(goals.values())) for name, (args, goals) in found.items())
    return past


class Accepted(NamedTuple):
    """A proposed task, and what shows that it can be solved: `replay`, `expert`, or nothing yet (`unproven`)."""

    task: Task
    proof: str


class Checked(NamedTuple):
    """Candidates that were looked at: those that are tasks, those that were refused; calls and resets that it took."""

    accepted: list[Accepted]
    refused: list[Refusal]
    calls: int
    resets: int


class TaskChecks:
    """Checks proposed tasks: new, none of the evaluation's, and solvable as shown by execution.

    Every task of the validation and test splits, and every known one, is reset once, to compare how they begin.

    Args:
        spec: The environment.
        known: The tasks that are known; those accepted are added.
        limits: Time limits.
        max_steps: Most actions of the expert.

    Attributes:
        unlisted: Splits that the environment could not list, with the error.
    """

    def __init__(self, spec: EnvSpec, known: Iterable[Task], limits: LimitsSection, max_steps: int) -> None:
        self._spec, self._limits, self._player = spec, limits, ScriptedPlayer(spec, max_steps)
        self._calls = self._resets = 0
        self.unlisted: dict[str, str] = {}
        old, held_out = list(known), list(self._held_out())
        self._goals = Hindsight(spec, [task.args for task in held_out])
        self._held_out_keys = {goal_key(plain(spec, task.args)) for task in held_out}
        self._keys, self._ids = {goal_key(plain(spec, task.args)) for task in old}, {task.task_id for task in old}
        self._begun = set(self._openings(old))
        self._held_out_begun: dict[str, set[str | None]] = {}
        for first, fingerprint in self._openings(held_out):
            self._held_out_begun.setdefault(first, set()).add(fingerprint)

    def check(self, candidates: Iterable[Any], past: History, wanted: int) -> Checked:
        """Look at candidates in their order, until so many are accepted or there are no more."""
        accepted: list[Accepted] = []
        refused: list[Refusal] = []
        limits = self._limits
        replayer = Replayer(self._spec, limits.step_seconds, limits.reset_seconds, live_states=0)
        with contextlib.closing(replayer):
            for candidate in candidates:
                found = self._checked(candidate, past, replayer)
                if isinstance(found, Refusal):
                    refused.append(found)
                    continue
                accepted.append(found)
                if len(accepted) == wanted:
                    break
        calls, resets, self._calls, self._resets = self._calls + replayer.tool_calls, self._resets, 0, 0
        return Checked(accepted, refused, calls, resets)

    def _checked(self, candidate: Any, past: History, replayer: Replayer) -> Accepted | Refusal:
        try:
            args = self._spec.task(plain(self._spec, candidate), "train", 0).args
            key = goal_key(args)
        except (ConfigError, AttributeError, TypeError) as error:
            return _refused(f"{candidate!r:.80}", "no dict of reset's arguments", error=str(error))
        name = f"proposed-{hashlib.blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"
        if key in self._keys:
            return _refused(name, "known", args)
        goal, actions = past.reached.get(key, (None, []))
        if key in self._held_out_keys or (goal is not None and self._goals.is_evaluation_goal(goal)):
            return _refused(name, "a task of the evaluation", args)
        if "task_id" in args and args["task_id"] in self._ids:
            args = {**args, "task_id": name}  # two tasks of one name would be one tree
        task = Task(str(args.get("task_id", name)), "train", args)
        try:
            if self._spec.judge is not None:
                self._spec.judge.check(task)
            self._resets += 1
            start = replayer.run(task, [])
        except (ConfigError, EnvironmentFault) as error:
            return _refused(name, "it cannot begin", args, str(error))
        opening = str(start.start.observation), start.start.fingerprint
        alike = self._held_out_begun.get(opening[0], set())
        if alike and (len(alike) == 1 or opening[1] in alike):  # what several begin with does not tell which one it is
            return _refused(name, "begins as a task of the evaluation", args)
        if opening in self._begun:
            return _refused(name, "begins as a known one", args)
        if start.verified:
            return _refused(name, "it holds at reset", args)
        proof = self._proof(task, actions, replayer)
        if isinstance(proof, Refusal):
            return proof
        self._keys |= {key, goal_key(args)}
        self._ids.add(task.task_id)
        self._begun.add(opening)
        return Accepted(task, proof)

    def _proof(self, task: Task, actions: Sequence[Action], replayer: Replayer) -> str | Refusal:
        with contextlib.suppress(EnvironmentFault):  # the expert may still solve it
            if actions and replayer.run(task, actions).verified:
                return "replay"
        if self._spec.demonstrate is not None:
            self._resets += 1
            try:
                played = self._player.expert(task)
            except BaseException as error:  # an expert may know none but the split's tasks
                if ends_the_run(error):
                    raise
                return "unproven"
            self._calls += len(played.steps)
            solved = played.verdict is not None and played.verdict.success
            return "expert" if solved else _refused(task.task_id, "the expert does not solve it", task.args)
        if actions:
            return _refused(task.task_id, "the actions that reached it do not solve it", task.args)
        return "unproven"

    def _held_out(self) -> Iterator[Task]:
        for split in ("validation", "test"):
            try:
                yield from self._spec.tasks(split)
            except (ConfigError, EnvironmentFault) as error:
                self.unlisted[split] = str(error)

    def _openings(self, tasks: Iterable[Task]) -> Iterator[tuple[str, str | None]]:
        """Yield how tasks begin: first observation and fingerprint; a task that cannot begin is left out."""
        with contextlib.suppress(EnvironmentFault), contextlib.ExitStack() as stack:  # one that closes badly began well
            episode = None
            for task in tasks:
                self._resets += 1
                try:
                    if episode is None:
                        episode = stack.enter_context(contextlib.closing(self._spec.open()))
                    yield episode.reset(task), episode.fingerprint()
                except EnvironmentFault:
                    episode = None  # what broke is not used again


def _refused(name: str, reason: str, args: Mapping[str, Any] | None = None, error: str | None = None) -> Refusal:
    facts = {"args": args, "error": error}
    return Refusal("task", name, reason, {key: value for key, value in facts.items() if value is not None})
