"""Checks of one environment: generators that yield a fault each; `conformance` runs them and reports."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import json
import random
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import zip_longest
from typing import TypeVar

from offline_agent.envs.base import SPLITS, EnvSpec, Episode
from offline_agent.envs.calls import CallWatch
from offline_agent.envs.costs import Costs, measured
from offline_agent.envs.episode_length import EpisodeLength, episode_length
from offline_agent.envs.play import begin, extend, to_step
from offline_agent.envs.process_state import ProcessState
from offline_agent.envs.scripted_play import ScriptedPlayer, both, difference, drawn_call, faulty
from offline_agent.errors import EnvironmentFault, ToolError, in_words
from offline_agent.records import Action, Task, Trajectory

MAX_LISTED = 2_000
NEVER = "each tool succeeds"
RUNS = 12  # of a script, in the check that makes most
_SAYS_NO = (ToolError, ValueError, LookupError)  # raised to refuse arguments; other errors are defects
WALKS = 30  # random calls of a task, to find one that each tool answers without an error


T = TypeVar("T")


class NotApplicable(Exception):
    """The environment has no member that the check is for."""


class Checks:
    """The checks of an environment; each is a generator of faults, in words.

    Args:
        spec: The environment; its `watch` is set.
        tasks: Number of tasks of each split that are played.
        max_steps: Most actions in one episode.
        seconds: Time for one check: after half of it no further task is begun.

    Attributes:
        costs: What opening and calls cost; None before `measure`, and where the environment broke in it.
        length: The longest episode where the user names none; None as `costs`.
        left_out: Number of tasks that the present check did not play for want of time.
        surroundings: The state of this process before the first check.
        seconds: See above; the next check takes it anew.
    """

    def __init__(self, spec: EnvSpec, tasks: int, max_steps: int, seconds: float) -> None:
        self.spec = spec
        self.max_steps = max_steps
        self.player = ScriptedPlayer(spec, max_steps)
        self.watch = spec.watch = CallWatch()
        self.costs: Costs | None = None
        self.length: EpisodeLength | None = None
        self.left_out = 0
        self.surroundings = ProcessState()
        self.seconds = seconds
        self._count = tasks
        self._tasks: dict[str, list[Task]] = {}

    def all(self) -> Iterator[tuple[str, Callable[[], Iterable[str]]]]:
        """Yield the checks and their names, in order."""
        yield "tasks", self.tasks
        yield "splits are disjoint", self.splits
        yield "reset is deterministic", self.reset
        yield "tools are TRL's", self.trl
        yield "tools can be called", self.callable
        yield NEVER, self.succeeds
        yield "bad calls are answered", self.bad_calls
        yield "the oracle succeeds", self.oracle
        yield "the empty policy fails", self.empty
        yield "get_reward at any time", self.reward
        yield "turn rewards are numbers", self.turns
        yield "replay repeats", self.replay
        yield "copies are independent", self.copies
        yield "any thread may call", self.threads
        yield "achieved goals are tasks", self.goals
        yield "the process stays as it is", self.process

    def measure(self) -> Iterator[str]:
        """Find no fault; measure what opening, calls and copies cost, and shorten the scripts where calls are slow."""
        self.costs = measured(self.spec, self.player, self.some())
        share = self.seconds / 2 / RUNS
        self.player.longest = max(3, min(self.max_steps, int(share / max(self.costs.call, 1e-6))))
        self.length = episode_length(self.spec)
        yield from ()

    def give(self, tasks: Sequence[Task]) -> None:
        """Take these tasks, of one split, in place of those that the environment lists."""
        self._tasks = {"given": list(tasks)}

    def listed(self, split: str) -> list[Task]:
        """Return the first `MAX_LISTED` tasks of a split, as the check of tasks listed them."""
        return self._tasks.get(split, [])

    def tasks(self) -> Iterator[str]:
        """Every split has tasks, listed the same each time."""
        for split in SPLITS:
            self._tasks[split] = list(itertools.islice(self.spec.tasks(split), MAX_LISTED))
            again = list(itertools.islice(self.spec.tasks(split), 20))
            if not self._tasks[split]:
                yield f"split {split!r} has no tasks"
            if again != self._tasks[split][:20]:
                mend = self.spec.mend("; seed whatever draws them")
                yield f"listing split {split!r} twice gave different tasks{mend}"

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
        """Two instances begin alike, and a second reset gives a fresh episode."""
        for task in self.some():
            before = copy.deepcopy(dict(task.args))
            with self.opened() as one, self.opened() as two:
                first = one.reset(task)
                if first != (other := two.reset(task)):
                    yield f"{task.task_id}: two instances begin differently: {both(first, other)}"
                self.player.run_on(one, task, self.player.script(task)[:3])
                if (again := one.reset(task)) != first:
                    told = f"differs, and TRL uses instances again: {both(first, again)}"
                    yield f"{task.task_id}: a second reset of the same instance {told}"
            if dict(task.args) != before:
                yield f"{task.task_id}: reset changed its arguments"

    def trl(self) -> Iterator[str]:
        """TRL finds the same tools."""
        members = inspect.getmembers(self.spec.cls, inspect.isfunction)
        expected = {n for n, _ in members if n not in ("reset", "get_reward") and not n.startswith("_")}
        if expected != set(self.spec.tools.names):
            yield f"TRL lists {sorted(expected)}, this package {sorted(self.spec.tools.names)}"
        if not expected:
            yield "it has no tools" + self.spec.mend(": write a public method with type hints and a docstring")
        for task in self.some():
            with self.opened() as episode:
                episode.reset(task)
                unknown = set(episode.tools.names) - expected
                if unknown:
                    yield f"{task.task_id}: its own tools {sorted(unknown)} are not methods of the class"

    def callable(self) -> Iterator[str]:
        """Every tool answers arguments drawn from its schema, with a result or an error the policy can read."""
        for task in self.some():
            with self.opened() as episode:
                start = begin(episode, task)
                for schema in episode.tools.schemas:
                    name = schema["function"]["name"]
                    if name in self.spec.irreversible and not self.spec.sandboxed:
                        continue
                    if episode.terminated:
                        episode.reset(task)
                    result = episode.step(drawn_call(schema, start, random.Random(f"{task.task_id} {name}")))
                    if result.fault == "bad_arguments":
                        yield f"{name}: arguments drawn from its schema were refused: {result.observation}"

    def succeeds(self) -> Iterator[str]:
        """Every tool answers at least one call without an error, in the expert's plays or in random ones.

        A tool that the expert leaves alone may refuse whatever is drawn by chance, such as ids that do not exist.
        """
        used: set[str] = set()
        for task in self.some():
            rare = self._never()
            if not rare:
                return
            if self.spec.demonstrate is not None:
                steps = self.player.expert(task).steps
                used |= {step.action.call.name for step in steps if step.action.call is not None}
            self.player.walk(task, WALKS, rare)
        refused = self._refused_by_chance(used)
        show = self.spec.mend(
            "quote an example in the docstring, or give the class `demonstrate`", "env.demonstrate=module:function"
        )
        for name in sorted(self._never() - refused):
            yield (
                f"{name}: all {self.watch.failed[name]} calls of it were answered with an error, the last with "
                f"{in_words(self.watch.errors[name])}. {self.spec.mend('Mend what raises it; where', 'Where')} only "
                f"rare calls succeed, show one: {show}"
            )

        if refused and refused == self._never():
            raise NotApplicable(
                f"nothing tells of {', '.join(sorted(refused))}: the expert calls none of them in these tasks, and all "
                "random calls were refused; play more tasks" + self.spec.mend(", or quote an example in the docstring")
            )

    def _refused_by_chance(self, used: Container[str]) -> set[str]:
        """Return the tools that never succeeded, raise what says no, and are not among those that the expert used."""
        if self.spec.demonstrate is None:
            return set()
        errors = self.watch.errors
        return {name for name in self._never() if name not in used and isinstance(errors[name], _SAYS_NO)}

    def _never(self) -> set[str]:
        """Return the tools that were called and never succeeded."""
        failed, succeeded = self.watch.failed, self.watch.succeeded
        return {name for name in self.spec.tools.names if failed[name] and not succeeded[name]}

    def bad_calls(self) -> Iterator[str]:
        """Faulty turns get a readable answer and leave the state as it is."""
        for task in self.some():
            script = self.player.script(task)
            with self.opened() as episode:
                here = begin(episode, task)
                for action in faulty(episode):
                    result = episode.step(action)
                    if not result.fault or not result.observation or result.terminated:
                        yield f"{task.task_id}: {action.text!r} was answered with {result!r}"
                disturbed = self.player.run_on(episode, task, script, after=here)
                if (told := difference(self.player.run(task, script), disturbed)) is not None:
                    yield f"{task.task_id}: after faulty calls the same actions are answered differently: {told}"

    def oracle(self) -> Iterator[str]:
        """The expert without noise earns 1.0."""
        if self.spec.demonstrate is None:
            raise NotApplicable("there is no demonstrate hook")
        for task in self.some():
            played = self.player.expert(task)
            verdict = played.verdict
            if verdict is None or not verdict.success or verdict.score != 1.0:
                got = "nothing" if verdict is None else f"{verdict.score} ({verdict.error or dict(verdict.evidence)})"
                yield f"{task.task_id}: after {len(played.steps)} actions without noise it scored {got:.500}"

    def empty(self) -> Iterator[str]:
        """Answering nothing ends the episode with 0."""
        for task in self.some():
            played = self.player.run(task, [Action("")] * self.max_steps)
            verdict = played.verdict
            if not (played.steps and played.terminated):
                yield f"{task.task_id}: {self.max_steps} empty answers did not end the episode"
            elif verdict is None or verdict.success is not False or verdict.score != 0.0:
                yield f"{task.task_id}: answering nothing scored {None if verdict is None else verdict.score}, not 0"

    def reward(self) -> Iterator[str]:
        """The reward can be asked for at any time, answers alike when asked twice, and changes nothing."""
        for task in self.some():
            with self.opened() as episode:
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
        for task in self.some():
            with self.opened() as episode:
                if self.spec.turn_rewards:
                    episode.turn_reward()  # TRL looks at every attribute of a new instance for its tools
                episode.reset(task)
                if not self.spec.turn_rewards:
                    if episode.undeclared_turn_reward():
                        mend = self.spec.mend(": write `turn_reward = None` in it")
                        yield f"instances have a turn_reward, the class has none{mend}"
                        return
                    raise NotApplicable("it has no turn_reward")
                for action in self.player.script(task):
                    if episode.terminated:
                        break
                    result = episode.step(action)
                    given |= result.reward is not None and result.fault is None and action.call is not None
                    if result.fault is None and action.call is not None and episode.turn_reward() != result.reward:
                        yield f"{task.task_id}: asked twice, turn_reward answered differently"
                        break
        if not given:
            mend = self.spec.mend("; leave it out where there is nothing to say")
            yield f"turn_reward was None after every call{mend}"

    def replay(self) -> Iterator[str]:
        """The same actions in a new instance are answered alike."""
        for task in self.some():
            script = self.player.script(task)
            told = difference(self.player.run(task, script), self.player.run(task, script))
            if told is not None:
                mend = self.spec.mend("seed all chance", "what is adapted draws by chance, or keeps state elsewhere")
                yield f"{task.task_id}: the same actions in a new instance were answered differently; {mend}; {told}"

    def copies(self) -> Iterator[str]:
        """Copies made at several points continue like the original, and do not touch it."""
        if self.spec.replay_only:
            raise NotApplicable("replay_only: states are restored by replay")
        for task in self.some():
            script = self.player.script(task)
            expected = self.player.run(task, script)
            for at in sorted({0, len(script) // 2, max(len(script) - 1, 0)}):
                with self.opened() as original:
                    start = self.player.run_on(original, task, script[:at])
                    state, here, rest = original.fingerprint(), start.context, script[at:]
                    with contextlib.closing(original.copy()) as one, contextlib.closing(original.copy()) as two:
                        first = self.player.run_on(one, task, rest, here)
                        if original.fingerprint() != state:
                            yield f"{task.task_id}: stepping a copy changed the original's fingerprint"
                        runs = [first, *(self.player.run_on(each, task, rest, here) for each in (original, two))]
                if told := next(filter(None, (difference(expected, run, start) for run in runs)), None):
                    mend = self.spec.mend("see __deepcopy__", "a search finds this out, and restores states by replay")
                    yield f"{task.task_id}: copies made after {at} actions share state or lack some; {mend}; {told}"
                    break

    def threads(self) -> Iterator[str]:
        """An environment whose class says so is opened, stepped, copied and closed by different threads."""
        if self.spec.one_thread:
            raise NotApplicable(
                "one thread makes all calls of an environment" + self.spec.mend("; `one_thread = False` allows any")
            )
        author = "take `one_thread = False` away, then one thread makes all calls"
        mend = self.spec.mend(author, "set env.isolate=process")
        for task in self.some():
            script = self.player.script(task)
            expected = self.player.run(task, script)
            try:
                got = self._by_many_threads(task, script)
            except EnvironmentFault as fault:
                yield f"{task.task_id}: {fault}; {mend}"
                return
            if (told := difference(expected, got)) is not None:
                yield f"{task.task_id}: by several threads it answers differently; {mend}; {told}"

    def _by_many_threads(self, task: Task, actions: Sequence[Action]) -> Trajectory:
        """Play actions, each call in another thread."""
        episode = _elsewhere(self.spec.open)
        try:
            context, steps = _elsewhere(partial(begin, episode, task)), []
            for action in actions:
                if episode.terminated:
                    break
                steps.append(to_step(episode.tools, action, _elsewhere(partial(episode.step, action))))
                context = extend(context, steps[-1])
            verdict = _elsewhere(episode.verdict)
            return Trajectory(context, tuple(steps), verdict, episode.terminated, False, "rollout")
        finally:
            _elsewhere(episode.close)

    def goals(self) -> Iterator[str]:
        """`reset` accepts the goals that are named as achieved."""
        seen = False
        for task in self.some():
            with self.opened() as episode:
                self.player.run_on(episode, task, self.player.script(task))
                goal = episode.achieved_goal()
                if goal is None:
                    continue
                seen = True
                json.dumps(goal)
                with self.opened() as other:
                    other.reset(Task(task.task_id, task.split, goal))
        if not seen:
            raise NotApplicable("it names no achieved goal")
        yield from ()

    def process(self) -> Iterator[str]:
        """No call changes the state of the process, which the run and all other environments share."""
        if self.spec.isolated:
            raise NotApplicable("the environment runs in processes of its own")
        for task in self.some():
            self.player.run(task, self.player.script(task))
        for told in self.surroundings.put_back():
            mend = self.spec.mend("put back what is changed, or ")
            yield f"it left the process with {told}; {mend}set env.isolate=process"

    def opened(self) -> contextlib.closing[Episode]:
        """Return a new episode, closed at the end of a `with` block."""
        return contextlib.closing(self.spec.open())

    def some(self) -> Iterator[Task]:
        """Yield the tasks to play, the splits in turn; those that half of the time is not enough for are left out."""
        rounds = zip_longest(*(listed[: self._count] for listed in self._tasks.values()))
        some = [task for each in rounds for task in each if task is not None]
        end = time.monotonic() + self.seconds / 2
        for number, task in enumerate(some):
            if number and time.monotonic() > end:
                self.left_out = len(some) - number
                return
            yield task


def _elsewhere(job: Callable[[], T]) -> T:
    """Return what a job returns in a thread of its own; pass on what it raises."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(job).result()
