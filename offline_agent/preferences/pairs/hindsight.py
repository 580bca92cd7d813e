"""Failures that are successes of another goal: hindsight relabelling with every claim checked by replay."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.preferences.pairs.trajectory import verified_pair
from offline_agent.preferences.records import Goal, PreferencePair, Refusal, Replay, extend, without_logps
from offline_agent.preferences.replayer import Replayer
from offline_agent.preferences.statistics import certainty
from offline_agent.records import Context, Step, Task, Trajectory

if TYPE_CHECKING:
    from offline_agent.envs.base import EnvSpec
    from offline_agent.search.tree import Node, SearchTree

_WORD = re.compile(r"\w+")
_PER_TREE = 8  # goals relabelled
_PAIRS_PER_GOAL = 2
_REJECTED_TRIED = 16  # branches replayed under one new goal in search of rejected sides
_EXTRA_STEPS = 5  # by which the chosen side of a pair may be longer than the rejected one


@dataclass(frozen=True, slots=True)
class Relabelled:
    """A success of a goal nobody had asked for.

    Attributes:
        task: The task it is a success of.
        trajectory: The replay under that task, origin `hindsight`.
        end: The node of the tree whose branch it was.
    """

    task: Task
    trajectory: Trajectory
    end: Node


class Hindsight:
    """HER's `final` strategy over the branches of a tree (Andrychowicz et al. 2017; docs/pairs.md).

    A goal is taken up only if the environment names it in the final state reached again by replay, a fresh episode
    of the relabelled task judges the same actions a success, it did not hold at reset, no thought names the old
    goal, no argument holds a word of the old goal that neither the new request nor a page before it shows (nobody could
    have known it), and it is no goal of the evaluation splits.

    Args:
        spec: The environment. A class attribute `hindsight = "why not"` refuses relabelling with that reason.
        evaluation: Arguments of the tasks of the evaluation splits; see `evaluation_tasks`.
    """

    def __init__(self, spec: EnvSpec, evaluation: Iterable[Mapping[str, Any]] = ()) -> None:
        self._evaluation = list(evaluation)
        self._evaluation_keys: dict[tuple[str, ...], frozenset[str]] = {}
        self.why_not = why_no_hindsight(spec)
        self._certain = spec.deterministic_verifier

    def mine(
        self, tree: SearchTree, replayer: Replayer
    ) -> tuple[list[Relabelled], list[PreferencePair], list[Refusal]]:
        """Return the relabelled successes of a tree, their pairs, and what was refused, in the order of the nodes."""
        if self.why_not is not None:
            return [], [], [Refusal("hindsight", tree.tree_id, self.why_not)]
        found: dict[str, Relabelled] = {}
        pairs: list[PreferencePair] = []
        refusals: list[Refusal] = []
        for end, goal in reached_goals(tree):
            if len(found) >= _PER_TREE:
                break
            key = goal_key(goal)
            if key in found:
                continue
            outcome = self.relabel(tree, end, goal, replayer)
            if isinstance(outcome, Refusal):
                refusals.append(outcome)
                continue
            found[key] = outcome
            pairs += self._pairs(tree, outcome, replayer)
        return list(found.values()), pairs, refusals

    def relabel(self, tree: SearchTree, end: Node, goal: Goal, replayer: Replayer) -> Relabelled | Refusal:
        """Check one goal against one branch by two replays; return the relabelled success or why it is none."""
        name = f"{tree.tree_id}/node {end.id}"

        def refuse(reason: str, **facts: Any) -> Refusal:
            return Refusal("hindsight", name, reason, {"goal": goal, **facts})

        key = goal_key(goal)
        if key == goal_key(restricted(tree.task.args, goal)):
            return refuse("the goal reached is the goal asked for, yet the verifier calls it a failure")
        if self.is_evaluation_goal(goal):
            return refuse("it is an evaluation goal")
        steps = tree.steps(end)
        actions = [step.action for step in steps]
        mark = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
        task = Task(f"{tree.task.task_id}~{mark}", tree.task.split, {**tree.task.args, **goal})
        try:
            # The request is enough to refuse most goals, and asking for it executes nothing.
            in_thoughts = _named(tree, replayer.run(task, []).context, steps, task)[0]
            if in_thoughts:
                return refuse(f"a thought names the old goal: {', '.join(sorted(in_thoughts))}")
            again = replayer.run(tree.task, actions)
            fresh = replayer.run(task, actions)
        except EnvironmentFault as error:
            return refuse(f"the replay broke: {error}")
        reason = _differs(steps, again, key) or _unverified(fresh, len(actions), key)
        if reason is not None:
            return refuse(reason)
        in_arguments = _named(tree, fresh.context.lineage()[0], fresh.steps, task)[1]
        if in_arguments:
            return refuse(f"an argument names the old goal: {', '.join(sorted(in_arguments))}")
        steps = without_logps(fresh.steps)
        context = extend(fresh.context.lineage()[0], steps)
        relabelled = Trajectory(context, steps, fresh.verdict, fresh.terminated, False, "hindsight")
        return Relabelled(task, relabelled, end)

    def is_evaluation_goal(self, goal: Goal) -> bool:
        """Return whether an evaluation task asks for this goal, whatever other arguments the task has."""
        names = tuple(sorted(goal))
        if names not in self._evaluation_keys:
            keys = (goal_key(restricted(args, goal)) for args in self._evaluation)
            self._evaluation_keys[names] = frozenset(keys)
        return goal_key(goal) in self._evaluation_keys[names]

    def _pairs(self, tree: SearchTree, relabelled: Relabelled, replayer: Replayer) -> list[PreferencePair]:
        """Pair a relabelled success with branches of the same tree that fail the new goal."""
        pairs: list[PreferencePair] = []
        success = relabelled.trajectory
        tried = 0
        for end in _nearest(tree, relabelled.end):
            if len(pairs) >= _PAIRS_PER_GOAL or tried >= _REJECTED_TRIED:
                break
            tried += 1
            steps = tree.steps(end)
            try:
                fresh = replayer.run(relabelled.task, [step.action for step in steps])
            except EnvironmentFault:
                continue
            if fresh.verdict.success is not False or not fresh.terminated or len(fresh.steps) < len(steps):
                continue
            if _named(tree, fresh.context.lineage()[0], fresh.steps, relabelled.task)[0]:
                continue
            pair = self._pair(tree, relabelled, success, end, fresh)
            if pair is not None:
                pairs.append(pair)
        return pairs

    def _pair(
        self, tree: SearchTree, relabelled: Relabelled, success: Trajectory, end: Node, fresh: Replay
    ) -> PreferencePair | None:
        at = _divergence(success.steps, fresh.steps)
        if at is None or success.context.lineage()[0].observation != fresh.context.lineage()[0].observation:
            return None
        chosen, rejected = success.steps[at:], without_logps(fresh.steps[at:])
        if len(chosen) - len(rejected) > _EXTRA_STEPS:
            return None
        better, worse = success.verdict, fresh.verdict
        assert better is not None and better.score is not None and worse.score is not None
        if worse.score >= better.score:
            return None
        good, bad = tree.path(relabelled.end)[at], tree.path(end)[at]
        if good.parent is not bad.parent:  # their histories are worded in other ways
            return None
        return verified_pair(
            "hindsight", tree, good.parent, (chosen, rejected), (better, worse), edges=(good.id, bad.id),
            sure=certainty(better.score, worse.score, self._certain), prefix=success.context.lineage()[at],
        )  # fmt: skip


def reached_goals(tree: SearchTree) -> Iterator[tuple[Node, Goal]]:
    """Yield the failures that reached a goal at their end."""
    for end in tree.terminals():
        failed = end.quarantined is None and end.verdict is not None and end.verdict.success is False
        if failed and end.terminated and not end.truncated and end.goal:
            yield end, end.goal


def _differs(steps: Sequence[Step], again: Replay, key: str) -> str | None:
    """Return why the final state differs from the recorded one or does not achieve the goal; None where it does."""
    if [step.observation for step in again.steps] != [step.observation for step in steps]:
        return "the environment answered differently on replay"
    if again.end.goal is None or goal_key(again.end.goal) != key:
        return "the final state, reached again by replay, does not achieve the goal"
    return None


def _unverified(fresh: Replay, wanted: int, key: str) -> str | None:
    """Return why the replay under the new task is no success; None where it is one."""
    start = fresh.start
    assert start.verdict is not None  # it was judged
    if start.verdict.success is True or (start.goal is not None and goal_key(start.goal) == key):
        return "it held at reset"
    if fresh.verdict.success is None:
        return f"the replay under the new goal could not be judged: {fresh.verdict.error}"
    if not fresh.verified:
        return f"the replay under the new goal is no success (score {fresh.verdict.score:g})"
    if len(fresh.steps) < wanted:
        return "the replay under the new goal ended sooner"
    return None


def _nearest(tree: SearchTree, end: Node) -> list[Node]:
    """The other ends of a tree, those that share the longest history with `end` first."""
    path = {edge.id for edge in tree.path(end)}
    others = [
        other
        for other in tree.terminals()
        if other is not end and other.terminated and not other.truncated and other.quarantined is None
    ]
    shared = {other.id: sum(edge.id in path for edge in tree.path(other)) for other in others}
    return sorted(others, key=lambda other: (-shared[other.id], other.id))


def _divergence(one: Sequence[Step], other: Sequence[Step]) -> int | None:
    """Position of the first canonical divergence of two branches; None where there is none or histories differ."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a.key != b.key:
            return at
        if a.observation != b.observation:
            return None
    return None


def _named(tree: SearchTree, start: Context, steps: Sequence[Step], task: Task) -> tuple[set[str], set[str]]:
    """Words of the old goal, and not of the new one: those in thoughts, and those in arguments that nothing showed.

    Args:
        tree: Its task has the old goal.
        start: The start of the task with the new goal, where the request stands.
        steps: Their thoughts and arguments are looked through; what they show counts for the arguments.
        task: The task with the new goal.
    """
    old = words(tree.root.context.observation or "") | leaf_words(tree.task.args)
    foreign = old - (words(start.observation or "") | leaf_words(task.args))
    in_thoughts: set[str] = set()
    in_arguments: set[str] = set()
    read: set[str] = set()
    for step in steps:
        action = step.action
        in_thoughts |= words(action.text if action.call is None else action.thought) & foreign
        if action.call is not None:
            # What a page showed may be used in a call, whatever the goal was; a thought speaks of the goal.
            in_arguments |= (leaf_words(action.call.arguments) & foreign) - read
        read |= words(step.observation or "")
    return in_thoughts, in_arguments


def goal_key(args: Mapping[str, Any]) -> str:
    """Return a text that two goals share exactly when their arguments are equal."""
    return json.dumps(args, sort_keys=True, separators=(",", ":"), default=str)


def restricted(args: Mapping[str, Any], goal: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task's arguments that a goal speaks of."""
    return {name: args[name] for name in goal if name in args}


def evaluation_tasks(spec: EnvSpec) -> list[Mapping[str, Any]]:
    """Return the arguments of every validation and test task.

    Empty where the environment takes no relabelling.
    """
    return [] if why_no_hindsight(spec) is not None else [task.args for task in held_out_tasks(spec)]


def held_out_tasks(spec: EnvSpec) -> list[Task]:
    """Return every validation and test task; none of a split that the environment does not list, or refuses."""
    found: list[Task] = []
    for split in ("validation", "test"):
        with contextlib.suppress(ConfigError, EnvironmentFault):
            found += spec.tasks(split)
    return found


def why_no_hindsight(spec: EnvSpec) -> str | None:
    """Return why failures of this environment cannot be relabelled; None where they can."""
    reason = getattr(spec.cls, "hindsight", None)
    if isinstance(reason, str):
        return reason
    if not hasattr(spec.cls, "achieved_goal"):
        return "the environment does not say what a state achieves (no achieved_goal)"
    return None


def words(text: str) -> set[str]:
    """Return the words of a text by which a goal can be told: of three letters or more, or with a digit."""
    return {word for word in _WORD.findall(text.casefold()) if len(word) >= 3 or any(c.isdigit() for c in word)}


def leaf_words(value: Any) -> set[str]:
    """Return the words of all texts in nested values."""
    if isinstance(value, Mapping):
        return set().union(*map(leaf_words, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(leaf_words, value))
    return words(value) if isinstance(value, str) else set()
