"""Checks of tools and of repetition, on tasks that each check plays for a bounded time."""

from __future__ import annotations

import contextlib
import inspect
import random
import time
from collections.abc import Container, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.boundary import ProcessState
from offline_agent.envs.checks.plays import Plays
from offline_agent.envs.checks.registry import AuditSection, NotApplicable
from offline_agent.envs.description import CallWatch
from offline_agent.envs.play import ScriptedPlayer, begin, difference, drawn_call, faulty, play
from offline_agent.envs.play import script as script_of
from offline_agent.errors import ConfigError, EnvironmentFault, ToolError, in_words
from offline_agent.records import Action, Task

RUNS = 12  # of a script, in the check that makes most
_REFUSALS = (ToolError, ValueError, LookupError)  # raised to refuse arguments; other errors are defects
WALKS = 30  # random calls of a task, to find one that each tool answers without an error


class ToolChecks:
    """The tasks that checks play, and checks of tools and of repetition; each is a generator of faults, in words.

    Args:
        spec: The environment; its `watch` is set.
        settings: How thorough.
        answers_only: Leave out the plays of reward seekers that call tools.

    Attributes:
        player: Plays the expert and scripts.
        plays: Plays of the expert, of chance and of reward seekers.
        measured: Figures of the present check are put here.
        tools: How each tool of the first task is called, such as `move(direction)`; filled by the check `reset`.
        openings: First observations of the tasks played; filled by the check `reset`.
        left_out: Number of tasks that the present check did not play for want of time.
        surroundings: The state of this process before the first check.
        seconds: Time for the present check: after half of it no further task is begun.
    """

    def __init__(self, spec: EnvSpec, settings: AuditSection, answers_only: bool = False) -> None:
        self.spec = spec
        self.settings = settings
        self.player = ScriptedPlayer(spec, settings.max_steps)
        self.plays = Plays(spec, self.player, settings.max_steps, answers_only)
        self.measured: dict[str, Any] = {}
        self.watch = spec.watch = CallWatch()
        self.tools: list[str] = []
        self.openings: list[str] = []
        self.left_out = 0
        self.surroundings = ProcessState()
        self.seconds = settings.seconds
        self._tasks: dict[str, list[Task]] = {}

    def measure(self) -> Iterator[str]:
        """Find no fault; shorten the scripts where calls are slow."""
        task, share = next(self.some()), self.seconds / 2 / RUNS
        started = time.perf_counter()
        calls = len(self.player.walk(task).steps) + 1
        call = (time.perf_counter() - started) / calls
        self.player.longest = max(3, min(self.settings.max_steps, int(share / max(call, 1e-6))))
        yield from ()

    def give(self, tasks: Sequence[Task]) -> None:
        """Take these tasks, of one split, in place of those that the environment lists."""
        self._tasks = {"given": list(tasks)}

    def trl(self) -> Iterator[str]:
        """TRL finds the same tools."""
        members = inspect.getmembers(self.spec.cls, inspect.isfunction)
        expected = {n for n, _ in members if n not in ("reset", "get_reward") and not n.startswith("_")}
        if expected != set(self.spec.tools.names):
            yield f"TRL lists {sorted(expected)}, this package {sorted(self.spec.tools.names)}"
        if not expected:
            yield "it has no tools: write a public method with type hints and a docstring"
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
        for name in sorted(self._never() - refused):
            yield (
                f"{name}: all {self.watch.failed[name]} calls of it were answered with an error, the last with "
                f"{in_words(self.watch.errors[name])}. Mend what raises it; where only rare calls "
                "succeed, show one: quote an example in the docstring, or give the class `demonstrate`"
            )
        if refused and refused == self._never():
            raise NotApplicable(
                f"nothing tells of {', '.join(sorted(refused))}: the expert calls none of them in these tasks, and all "
                "random calls were refused; play more tasks, or quote an example in the docstring"
            )

    def _refused_by_chance(self, used: Container[str]) -> set[str]:
        """Return the tools that never succeeded, whose last error is a refusal, and that the expert did not use."""
        if self.spec.demonstrate is None:
            return set()
        errors = self.watch.errors
        return {name for name in self._never() if name not in used and isinstance(errors[name], _REFUSALS)}

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
                if (detail := difference(self.player.run(task, script), disturbed)) is not None:
                    yield f"{task.task_id}: after faulty calls the same actions are answered differently: {detail}"

    def verdicts(self) -> Iterator[str]:
        """The same end state gets the same verdict, asked again and reached again."""
        if not self.spec.deterministic_verifier:
            raise NotApplicable("the verifier says that it is not deterministic")
        for task in self.some():
            script = self.player.script(task)
            given = set()
            for _ in range(2):
                with self.opened() as episode:
                    self.player.run_on(episode, task, script)
                    for _ in range(self.settings.repeats):
                        verdict = episode.verdict()
                        given.add((verdict.score, verdict.success, str(dict(verdict.evidence)), verdict.error))
            if len(given) > 1:
                scores = sorted({str(score) for score, *_ in given})
                yield f"{task.task_id}: one end state got {len(given)} verdicts, with scores {', '.join(scores)}"

    def new_process(self) -> Iterator[str]:
        """The same actions in a process of a new interpreter are answered alike."""
        if self.spec.isolated:
            raise NotApplicable("the environment runs in processes of its own as it is")
        try:
            other = EnvSpec.load(
                self.spec.path, self.spec.args, isolated=True, judge=self.spec.judge, sandboxed=self.spec.sandboxed,
                max_observation_chars=self.spec.max_observation_chars,
            )  # fmt: skip
            other.open().close()
        except (ConfigError, EnvironmentFault) as error:
            raise NotApplicable(f"no other process can load it: {error}") from error
        player = ScriptedPlayer(other, self.settings.max_steps)
        for task in self.some():
            script = self.player.script(task)
            if (detail := difference(self.player.run(task, script), player.run(task, script))) is not None:
                mend = "do not depend on the order of sets, hash(), id(), the time or the working directory"
                yield f"{task.task_id}: a new process answers the same actions differently; {mend}; {detail}"

    def isolation(self) -> Iterator[str]:
        """After every kind of episode a reset begins anew, and two instances do not disturb one another."""
        for task in self.some():
            script = self.player.script(task)
            expected = self.player.run(task, script)
            with self.opened() as episode:
                for kind, actions in self._kinds(episode, task, script):
                    play(episode, task, script_of(actions), len(actions), judge=False)
                    if (detail := difference(expected, self.player.run_on(episode, task, script))) is not None:
                        yield f"{task.task_id}: after an episode that was {kind}, reset did not begin anew: {detail}"
                        break
            with self.opened() as one, self.opened() as other:
                start = begin(one, task)
                self.player.run_on(other, task, script)
                played = self.player.run_on(one, task, script, after=start)
                if (detail := difference(expected, played)) is not None:
                    mend = "share no state, or set env.isolate=process"
                    yield f"{task.task_id}: an episode of another instance changed this one; {mend}; {detail}"

    def _kinds(self, episode: Episode, task: Task, script: list[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Yield kinds of episodes with their actions."""
        yield "not begun", []
        yield "left in the middle", script[: len(script) // 2]
        yield "played to its end", script
        yield "ended by an answer", [Action("")]
        episode.reset(task)
        yield "full of faulty turns", list(faulty(episode))

    def opened(self) -> contextlib.closing[Episode]:
        """Return a new episode, closed at the end of a `with` block."""
        return contextlib.closing(self.spec.open())

    def some(self) -> Iterator[Task]:
        """Yield the tasks to play, the splits in turn; those that half of the time is not enough for are left out."""
        rounds = zip_longest(*(listed[: self.settings.tasks] for listed in self._tasks.values()))
        some = [task for each in rounds for task in each if task is not None]
        end = time.monotonic() + self.seconds / 2
        for number, task in enumerate(some):
            if number and time.monotonic() > end:
                self.left_out = len(some) - number
                return
            yield task
