"""Conformance suite: the checks that every environment must pass before it is searched or trained on.

`python -c "from offline_agent.envs.conformance import check; check('my_module:MyEnv')"` prints the report.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offline_agent.envs.base import SPLITS, EnvSpec, Episode
from offline_agent.envs.isolation.waiting import Call
from offline_agent.envs.scripted_play import ScriptedPlayer, call, draw, facts, faulty
from offline_agent.errors import ConfigError, OfflineAgentError, in_words
from offline_agent.judges.judge import Judge, make_judge
from offline_agent.records import Action, Context, Task

MAX_LISTED = 2_000


@dataclass(frozen=True)
class Check:
    """One check's outcome.

    Attributes:
        name: Name of the check.
        passed: None where it does not apply.
        detail: The faults, each with how to correct it, or why it does not apply; "" when passed.
    """

    name: str
    passed: bool | None
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """All checks of one environment, in the order they ran."""

    environment: str
    checks: tuple[Check, ...]

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(c for c in self.checks if c.passed is False)

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    def __str__(self) -> str:
        marks = {True: "ok     ", False: "FAILED ", None: "-      "}
        lines = [f"{marks[c.passed]}{c.name}{': ' if c.detail else ''}{c.detail}" for c in self.checks]
        return "\n".join([f"{self.environment}: {'passed' if self.passed else 'FAILED'}", *lines])


class _NotApplicable(Exception):
    """The environment has no member that the check is for."""


def check(name_or_path: str, args: Mapping[str, Any] | None = None, judge: Judge | None = None) -> Report:
    """Load an environment, check it, with a judge in place of its `get_reward` where one is given; print the report."""
    report = check_environment(EnvSpec.load(name_or_path, args, judge=judge))
    print(report)
    return report


def check_environment(spec: EnvSpec, *, tasks: int = 3, max_steps: int = 120, seconds: float = 60.0) -> Report:
    """Run the checks that every environment must pass; return the report.

    Args:
        spec: The environment.
        tasks: Number of tasks of each split that are played.
        max_steps: Most actions in one episode; the oracle must succeed within them.
        seconds: Longest any one check may take; one that takes longer fails.
    """
    checker = _Checker(spec, tasks, max_steps)
    out = []
    for name, function in checker.checks():
        out.append(_timed(name, function, seconds))
        if name == "tasks" and not out[-1].passed:
            break
    return Report(spec.name, tuple(out))


def _timed(name: str, function: Callable[[], Iterable[str]], seconds: float) -> Check:
    """Run one check in a thread of its own, so that an environment that hangs cannot hang the suite."""
    outcome: list[Check] = []
    call = Call()

    def run() -> None:
        try:
            with call.made_here():
                faults = list(itertools.islice(function(), 5))
            outcome.append(Check(name, not faults, "; ".join(faults)))
        except _NotApplicable as reason:
            outcome.append(Check(name, None, str(reason)))
        except OfflineAgentError as error:
            outcome.append(Check(name, False, str(error)))
        except BaseException as error:  # e.g. from the demonstrate hook, which no boundary wraps
            outcome.append(Check(name, False, in_words(error)))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    call.end()
    return outcome[0] if outcome else Check(name, False, f"it was not done after {seconds:g} s")


class _Checker:
    def __init__(self, spec: EnvSpec, tasks: int, max_steps: int) -> None:
        self.spec = spec
        self.max_steps = max_steps
        self.player = ScriptedPlayer(spec, max_steps)
        self._count = tasks
        self._tasks: dict[str, list[Task]] = {}

    def checks(self) -> Iterator[tuple[str, Callable[[], Iterable[str]]]]:
        yield "tasks", self.tasks
        yield "splits are disjoint", self.splits
        yield "reset is deterministic", self.reset
        yield "tools are TRL's", self.trl
        yield "tools can be called", self.callable
        yield "bad calls are answered", self.bad_calls
        yield "the oracle succeeds", self.oracle
        yield "the empty policy fails", self.empty
        yield "get_reward at any time", self.reward
        yield "turn rewards are numbers", self.turns
        yield "replay repeats", self.replay
        yield "copies are independent", self.copies
        yield "achieved goals are tasks", self.goals

    def tasks(self) -> Iterator[str]:
        for split in SPLITS:
            self._tasks[split] = list(itertools.islice(self.spec.tasks(split), MAX_LISTED))
            again = list(itertools.islice(self.spec.tasks(split), 20))
            if not self._tasks[split]:
                yield f"split {split!r} has no tasks"
            if again != self._tasks[split][:20]:
                yield f"listing split {split!r} twice gave different tasks; seed whatever draws them"

    def splits(self) -> Iterator[str]:
        """No task is in two splits, whatever it is called there."""
        seen: dict[str, str] = {}
        for split, listed in self._tasks.items():
            for task in listed:
                facts = {k: v for k, v in task.args.items() if k not in ("task_id", "split", "fold")}
                for key in {task.task_id, json.dumps(facts, sort_keys=True) if facts else task.task_id}:
                    other = seen.setdefault(key, split)
                    if other != split:
                        yield f"{task.task_id!r} is in {other!r} and in {split!r}"

    def reset(self) -> Iterator[str]:
        for task in self._some():
            before = copy.deepcopy(dict(task.args))
            with self._opened() as one, self._opened() as two:
                first = one.reset(task)
                if first != two.reset(task):
                    yield f"{task.task_id}: two instances begin differently"
                if one.terminated:
                    yield f"{task.task_id}: it is terminated after reset"
                self.player.run_on(one, task, self.player.script(task)[:3])
                if one.reset(task) != first or one.terminated:
                    yield f"{task.task_id}: a second reset of the same instance differs; TRL uses instances again"
            if dict(task.args) != before:
                yield f"{task.task_id}: reset changed its arguments"

    def trl(self) -> Iterator[str]:
        members = inspect.getmembers(self.spec.cls, inspect.isfunction)
        expected = {n for n, _ in members if n not in ("reset", "get_reward") and not n.startswith("_")}
        if expected != set(self.spec.tools.names):
            yield f"TRL lists {sorted(expected)}, this package {sorted(self.spec.tools.names)}"
        if not expected:
            yield "it has no tools: write a public method with type hints and a docstring"
        for task in self._some():
            with self._opened() as episode:
                episode.reset(task)
                unknown = set(episode.tools.names) - expected
                if unknown:
                    yield f"{task.task_id}: its own tools {sorted(unknown)} are not methods of the class"

    def callable(self) -> Iterator[str]:
        """Every tool answers arguments drawn from its schema, with a result or an error the policy can read."""
        for task in self._some():
            with self._opened() as probe:
                probe.reset(task)
                schemas = probe.tools.schemas
            for schema in schemas:
                with self._opened() as episode:
                    episode.reset(task)
                    name = schema["function"]["name"]
                    arguments = draw(schema, random.Random(f"{task.task_id} {name}"))
                    if name in self.spec.irreversible and not self.spec.sandboxed:
                        continue
                    result = episode.step(call(name, arguments))
                    if result.fault == "bad_arguments":
                        yield f"{name}: arguments drawn from its schema were refused: {result.observation}"

    def bad_calls(self) -> Iterator[str]:
        """Faulty turns get a readable answer and leave the state as it is."""
        for task in self._some():
            script = self.player.script(task)
            with self._opened() as episode:
                episode.reset(task)
                for action in faulty(episode):
                    result = episode.step(action)
                    if not result.fault or not result.observation or result.terminated:
                        yield f"{task.task_id}: {action.text!r} was answered with {result!r}"
                here = Context(task, episode.system_prompt, episode.tools.schemas, None)
                disturbed = self.player.run_on(episode, task, script, after=here)
                if facts(self.player.run(task, script))[1:] != facts(disturbed)[1:]:
                    yield f"{task.task_id}: after faulty calls the same actions are answered differently"

    def oracle(self) -> Iterator[str]:
        if self.spec.demonstrate is None:
            raise _NotApplicable("there is no demonstrate hook")
        for task in self._some():
            played = self.player.expert(task)
            verdict = played.verdict
            if verdict is None or not verdict.success or verdict.score != 1.0:
                got = "nothing" if verdict is None else f"{verdict.score} ({verdict.error or dict(verdict.evidence)})"
                yield f"{task.task_id}: after {len(played.steps)} actions without noise it scored {got:.500}"

    def empty(self) -> Iterator[str]:
        for task in self._some():
            played = self.player.run(task, [Action("")] * self.max_steps)
            verdict = played.verdict
            if not (played.steps and played.terminated):
                yield f"{task.task_id}: {self.max_steps} empty answers did not end the episode"
            elif verdict is None or verdict.success is not False or verdict.score != 0.0:
                yield f"{task.task_id}: answering nothing scored {None if verdict is None else verdict.score}, not 0"

    def reward(self) -> Iterator[str]:
        for task in self._some():
            with self._opened() as episode:
                episode.reset(task)
                for action in [None, *self.player.script(task)]:
                    if action is not None:
                        if episode.terminated:
                            break
                        episode.step(action)
                    state, one, two = episode.fingerprint(), episode.verdict(), episode.verdict()
                    if one.error and "returned None" not in one.error:
                        yield f"{task.task_id}: {one.error}"
                        break
                    if self.spec.deterministic_verifier and one != two:
                        yield f"{task.task_id}: asked twice, get_reward answered differently: {one!r}, {two!r}"
                        break
                    if state != episode.fingerprint():
                        yield f"{task.task_id}: get_reward changed the state"
                        break

    def turns(self) -> Iterator[str]:
        """The turn reward is in [0, 1], the same when read twice, readable at any time, and given for some call."""
        given = False
        for task in self._some():
            with self._opened() as episode:
                if self.spec.turn_rewards:
                    episode.turn_reward()  # TRL looks at every attribute of a new instance for its tools
                episode.reset(task)
                if not self.spec.turn_rewards:
                    if episode.undeclared_turn_reward():
                        yield "instances have a turn_reward, the class has none: write `turn_reward = None` in it"
                        return
                    raise _NotApplicable("it has no turn_reward")
                for action in self.player.script(task):
                    if episode.terminated:
                        break
                    result = episode.step(action)
                    given |= result.reward is not None and result.fault is None and action.call is not None
                    if result.fault is None and action.call is not None and episode.turn_reward() != result.reward:
                        yield f"{task.task_id}: asked twice, turn_reward answered differently"
                        break
        if not given:
            yield "turn_reward was None after every call; leave it out where there is nothing to say"

    def replay(self) -> Iterator[str]:
        for task in self._some():
            script = self.player.script(task)
            if facts(self.player.run(task, script)) != facts(self.player.run(task, script)):
                yield f"{task.task_id}: the same actions in a new instance were answered differently; seed all chance"

    def copies(self) -> Iterator[str]:
        if self.spec.replay_only:
            raise _NotApplicable("replay_only: states are restored by replay")
        for task in self._some():
            script = self.player.script(task)
            expected = facts(self.player.run(task, script))
            for at in sorted({0, len(script) // 2, max(len(script) - 1, 0)}):
                with self._opened() as original:
                    start = self.player.run_on(original, task, script[:at])
                    state, here, rest = original.fingerprint(), start.context, script[at:]
                    with contextlib.closing(original.copy()) as one, contextlib.closing(original.copy()) as two:
                        first = facts(self.player.run_on(one, task, rest, here), start)
                        if original.fingerprint() != state:
                            yield f"{task.task_id}: stepping a copy changed the original's fingerprint"
                        second = facts(self.player.run_on(original, task, rest, here), start)
                        third = facts(self.player.run_on(two, task, rest, here), start)
                if not first == second == third == expected:
                    yield f"{task.task_id}: copies made after {at} actions share state or lack some; see __deepcopy__"
                    break

    def goals(self) -> Iterator[str]:
        seen = False
        for task in self._some():
            with self._opened() as episode:
                self.player.run_on(episode, task, self.player.script(task))
                goal = episode.achieved_goal()
                if goal is None:
                    continue
                seen = True
                json.dumps(goal)
                with self._opened() as other:
                    other.reset(Task(task.task_id, task.split, goal))
        if not seen:
            raise _NotApplicable("it names no achieved goal")
        yield from ()

    def _opened(self) -> contextlib.closing[Episode]:
        return contextlib.closing(self.spec.open())

    def _some(self) -> list[Task]:
        return [task for split in SPLITS for task in self._tasks[split][: self._count]]


def main(arguments: Sequence[str]) -> int:
    """Check the environments named on the command line; return 0 if all pass, 1 if one fails, 2 for wrong usage."""
    import sys

    sys.path.insert(0, "")  # the caller's environments lie in the current directory
    usage = "usage: python -m offline_agent.envs.conformance NAME|module:Class ... [judge=NAME judge.ARGUMENT=...]"
    if "--help" in arguments or "-h" in arguments:
        print(f"{usage}\n\n{__doc__}")
        return 0
    names = [argument for argument in arguments if "=" not in argument]
    if not names:
        print(usage, file=sys.stderr)
        return 2
    try:
        judge = _judge([argument for argument in arguments if "=" in argument])
        return int(not all([check(name, judge=judge).passed for name in names]))
    except ConfigError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2


def _judge(keys: Sequence[str]) -> Judge | None:
    from offline_agent.config.base import section
    from offline_agent.config.build_prefs import JudgeSection, Section
    from offline_agent.config.loading import load

    class Keys(Section):
        judge: JudgeSection = section(JudgeSection, "who gives the verdicts")

    chosen = load(Keys, overrides=keys).judge
    return make_judge(chosen.name, chosen.model_extra or {})


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
