"""Process rewards: subgoals as predicates over the states of an episode, beside its outcome.

r = w·outcome + (1 − w)·share of the subgoals reached, with w at least 1/2. So an episode without the outcome gets at
most 1 − w, and one with the outcome at least w: subgoals order failures, and never make one worth a success.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offline_agent import catalog
from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.judges.composition import JudgeOfJudges
from offline_agent.records import Step, Trajectory, Verdict

Predicate = Callable[[Trajectory], bool]
"""Tells whether a subgoal is reached at the end of a trajectory, which may be the beginning of an episode."""

_KINDS = ("observation", "call", "state", "predicate")
_KEYS = ("name", *_KINDS, "arguments", "weight")


@dataclass(frozen=True)
class Subgoal:
    """A subgoal.

    Attributes:
        name: Its key in the evidence.
        reached: Its predicate.
        weight: Its share of the process reward, before division by the sum of all.
    """

    name: str
    reached: Predicate
    weight: float


class ProcessJudge(JudgeOfJudges):
    """A judge of an outcome and of what was reached on the way; the base of those that know the subgoals.

    Args:
        outcome: Weight w of the outcome, in [0.5, 1].
        judge: Who tells the outcome: a judge's name, or a mapping of `name` and arguments.
        faults: Of the other arguments.

    Raises:
        ConfigError: A weight below one half, by which subgoals could be worth more than the outcome, a judge that
            cannot be made, or a fault that was found before: every one.
    """

    def __init__(self, outcome: float, judge: str | Mapping[str, Any], faults: Sequence[str]) -> None:
        found = list(faults)
        if not 0.5 <= outcome <= 1:
            why = "less, and subgoals could be worth more than the outcome"
            found.insert(0, f"judge.outcome: got {outcome!r}, allowed: 0.5 to 1; {why}")
        super().__init__({"judge.judge": judge}, found)
        self._outcome, (self._judge,) = outcome, self._judges


class subgoals(ProcessJudge):  # noqa: N801  # its name in a configuration, and in verdicts
    """The outcome of an episode, and the share of its subgoals.

    Each subgoal has a `name`, perhaps a `weight`, and one of: `observation` (a regular expression that an observation
    matches), `call` (a tool that was called without an error, perhaps with these `arguments`), `state` (path → value,
    as the evidence of the environment's verdict has them at the end), `predicate` (`module:callable` of a trajectory).

    Args:
        subgoals: At least one.
        outcome: Weight w of the outcome, in [0.5, 1].
        judge: Who tells the outcome: a judge's name, or a mapping of `name` and arguments.

    Raises:
        ConfigError: A weight below one half, or a subgoal that cannot be read: every fault.
    """

    def __init__(
        self, subgoals: Sequence[Any], outcome: float = 0.5, judge: str | Mapping[str, Any] = "environment"
    ) -> None:
        faults: list[str] = []
        self._subgoals = [made for n, one in enumerate(subgoals) if (made := _subgoal(n, one, faults)) is not None]
        if not subgoals:
            faults.append("judge.subgoals: got none, allowed: at least one")
        names = [one.name for one in self._subgoals]
        faults += [f"judge.subgoals: two are called {name!r}" for name in sorted(set(names)) if names.count(name) > 1]
        super().__init__(outcome, judge, faults)

    def __call__(self, trajectory: Trajectory) -> Verdict:
        """Return the verdict; its evidence has the turn at which each subgoal was first reached, from 1."""
        return process_verdict("subgoals", self._judge(trajectory), self._subgoals, trajectory, self._outcome)


def process_verdict(
    name: str, outcome: Verdict, goals: Sequence[Subgoal], trajectory: Trajectory, weight: float,
    evidence: Mapping[str, Any] | None = None,
) -> Verdict:  # fmt: skip
    """Return r = w·outcome + (1 − w)·share of the subgoals reached; no score where the outcome has none.

    Args:
        name: Of the judge.
        outcome: The verdict on the outcome.
        goals: At least one.
        trajectory: The episode.
        weight: w, in [0.5, 1].
        evidence: More of it, beside `outcome`, `reached_at` (by subgoal the turn, from 1; None = never) and `share`.
    """
    turns = reached_at(goals, trajectory)
    facts: dict[str, Any] = {**(evidence or {}), "outcome": outcome.to_json(), "reached_at": turns}
    if outcome.score is None:
        return Verdict(None, None, name, "1", facts, f"no outcome: {outcome.error}")
    whole = sum(one.weight for one in goals)
    share = facts["share"] = sum(one.weight for one in goals if turns[one.name] is not None) / whole
    reached = 1.0 if outcome.success else 0.0  # partial credit of the outcome must not add up to a success
    return Verdict(weight * reached + (1 - weight) * share, bool(outcome.success), name, "1", facts)


def reached_at(goals: Sequence[Subgoal], trajectory: Trajectory) -> dict[str, int | None]:
    """Return, by subgoal, the number of the turn after which it was first reached, from 1; None = never."""
    found: dict[str, int | None] = dict.fromkeys(one.name for one in goals)
    for number in range(1, len(trajectory.steps) + 1):
        # The environment's verdict is that of the end: earlier states have none.
        part = trajectory if number == len(trajectory.steps) else beginning(trajectory, number)
        for one in goals:
            if found[one.name] is None and one.reached(part):
                found[one.name] = number
    return found


def beginning(trajectory: Trajectory, turns: int) -> Trajectory:
    """Return the first so many turns of an episode, as a trajectory without a verdict."""
    context = trajectory.context.lineage()[turns]
    return Trajectory(context, trajectory.steps[:turns], None, False, False, trajectory.origin)


def _subgoal(number: int, entry: Any, faults: list[str]) -> Subgoal | None:
    key = f"judge.subgoals.{number}"
    if not isinstance(entry, Mapping):
        faults.append(f"{key}: got {entry!r}, allowed: a mapping of {', '.join(_KEYS)}")
        return None
    before = len(faults)
    for name in entry:
        if name not in _KEYS:
            faults.append(f"{key}.{name}: no such key; allowed: {', '.join(_KEYS)}.{did_you_mean(str(name), _KEYS)}")
    given = [kind for kind in _KINDS if kind in entry]
    weight = entry.get("weight", 1.0)
    if not isinstance(entry.get("name"), str) or not entry["name"]:
        faults.append(f"{key}.name: got {entry.get('name')!r}, allowed: a text")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight > 0:
        faults.append(f"{key}.weight: got {weight!r}, allowed: a number above 0")
    if len(given) != 1:
        faults.append(f"{key}: got {', '.join(given) or 'none'}, allowed: one of {', '.join(_KINDS)}")
    if len(faults) > before:
        return None
    try:
        return Subgoal(entry["name"], _predicate(key, given[0], entry), float(weight))
    except ConfigError as error:
        faults += error.faults
        return None


def _predicate(key: str, kind: str, entry: Mapping[str, Any]) -> Predicate:
    value = entry[kind]
    if kind == "predicate":
        found: Predicate = catalog.load(f"{key}.predicate", str(value))
        return lambda trajectory: bool(found(trajectory))
    if kind == "observation":
        try:
            pattern = re.compile(str(value))
        except re.error as error:
            raise ConfigError(f"{key}.observation: {value!r} is no regular expression: {error}") from error
        return lambda trajectory: pattern.search(_last(trajectory).observation or "") is not None
    if kind == "call":
        arguments = dict(entry.get("arguments") or {})
        return lambda trajectory: _called(_last(trajectory), str(value), arguments)
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(f"{key}.state: got {value!r}, allowed: {{path: value}}, as in {{cart.items: 2}}")
    wanted = dict(value)
    return lambda trajectory: _holds(trajectory, wanted)


def _last(trajectory: Trajectory) -> Step:
    return trajectory.steps[-1]


def _called(step: Step, tool: str, arguments: Mapping[str, Any]) -> bool:
    call = step.action.call
    if call is None or call.name != tool or step.fault is not None:
        return False
    return all(call.arguments.get(name) == value for name, value in arguments.items())


def _holds(trajectory: Trajectory, wanted: Mapping[str, Any]) -> bool:
    if trajectory.verdict is None:
        return False
    for path, value in wanted.items():
        here: Any = dict(trajectory.verdict.evidence)
        for part in str(path).split("."):
            if isinstance(here, Mapping) and part in here:
                here = here[part]
            elif isinstance(here, Sequence) and not isinstance(here, str) and part.isdigit() and int(part) < len(here):
                here = here[int(part)]
            else:
                return False
        if here != value:
            return False
    return True
