"""Plays of an audit: episodes of the expert, of chance and of reward seekers, kept for the checks that share them."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

from offline_agent.envs.audit.seekers import SEEKERS
from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.play import ScriptedPlayer, begin, drawn_call, extend, to_step
from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Context, Step, Task, Trajectory

CHANCE = 4  # random plays of a task
CHANCE_STEPS = 12  # most calls of one

T = TypeVar("T")


@dataclass
class Timings:
    """Seconds of the calls that the plays of an audit made.

    Attributes:
        resets, calls, verdicts: One entry for each.
    """

    resets: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    verdicts: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """Scores of several plays of one kind.

    Attributes:
        scores: Of those that could be scored.
        successes: Number of successes among them.
        errors: Why the others could not.
        best: The task of the play with the highest score, and what that play was.
    """

    scores: tuple[float, ...]
    successes: int
    errors: tuple[str, ...]
    best: str

    @property
    def mean(self) -> float:
        """Mean score; 0 where nothing could be scored."""
        return fmean(self.scores) if self.scores else 0.0

    @property
    def rate(self) -> float:
        """Share of successes."""
        return self.successes / len(self.scores) if self.scores else 0.0


class Plays:
    """Plays the tasks of an audit.

    Args:
        spec: The environment.
        player: Plays the expert and scripts.
        max_steps: Most actions of one play.
        answers_only: Leave out the plays of reward seekers that call tools.

    Attributes:
        timings: What the calls took.
    """

    def __init__(self, spec: EnvSpec, player: ScriptedPlayer, max_steps: int, answers_only: bool = False) -> None:
        self.spec = spec
        self.player = player
        self.max_steps = max_steps
        self.answers_only = answers_only
        self.timings = Timings()
        self._experts: dict[str, Trajectory | None] = {}
        self._chance: dict[str, list[Trajectory]] = {}

    def expert(self, task: Task) -> Trajectory | None:
        """Return the expert's episode; None where the environment has no expert, or it raised."""
        if task.task_id not in self._experts:
            played = None
            if self.spec.demonstrate is not None:
                with contextlib.suppress(Exception):  # semantic.oracle_max tells it
                    played = self.player.expert(task)
            self._experts[task.task_id] = played
        return self._experts[task.task_id]

    def chance(self, task: Task) -> list[Trajectory]:
        """Return episodes of random calls, each ended by an answer."""
        if task.task_id not in self._chance:
            played = [self._run(task, partial(_random, self.spec, number)) for number in range(CHANCE)]
            self._chance[task.task_id] = played
        return self._chance[task.task_id]

    def blind(self, task: Task) -> Trajectory:
        """Return an episode of calls whose arguments are drawn without a look at the task; the longest of some."""
        plays = [self._run(task, partial(_blind, self.spec, number)) for number in range(CHANCE)]
        return max(plays, key=lambda play: len(play.steps))

    def seek(self, name: str, task: Task) -> list[Trajectory]:
        """Return the episodes of a reward seeker (`seekers.SEEKERS`)."""
        with contextlib.closing(self.spec.open()) as episode:
            firsts = [next(play) for play in SEEKERS[name](self.spec, begin(episode, task))]
        chosen = [n for n, first in enumerate(firsts) if first.call is None or not self.answers_only]
        return [self._run(task, partial(_number, self.spec, name, number)) for number in chosen]

    def _run(self, task: Task, policy: Callable[[Context], Generator[Action, Context, Any]]) -> Trajectory:
        """Play one episode and judge its end, timed."""
        with contextlib.closing(self.spec.open()) as episode:
            context = self._timed(self.timings.resets, lambda: begin(episode, task))
            steps = self._steps(episode, context, policy(context))
            for step in steps:
                context = extend(context, step)
            verdict = self._timed(self.timings.verdicts, episode.verdict)
            return Trajectory(context, tuple(steps), verdict, episode.terminated, not episode.terminated, "rollout")

    def _steps(self, episode: Episode, context: Context, actions: Generator[Action, Context, Any]) -> list[Step]:
        steps: list[Step] = []
        with contextlib.closing(actions):
            while not episode.terminated and len(steps) < self.max_steps:
                try:
                    action = actions.send(context) if steps else next(actions)
                except StopIteration:  # the player has no further action
                    break
                result = self._timed(self.timings.calls, partial(episode.step, action))
                steps.append(to_step(episode.tools, action, result))
                context = extend(context, steps[-1])
        return steps

    @staticmethod
    def _timed(kept: list[float], job: Callable[[], T]) -> T:
        started = time.perf_counter()
        try:
            return job()
        finally:
            kept.append(time.perf_counter() - started)


def outcome(plays: list[Trajectory]) -> Outcome:
    """Return the scores of plays."""
    scored = [(play.verdict.score, play) for play in plays if play.verdict and play.verdict.score is not None]
    errors = tuple(
        f"{play.task.task_id}: {play.verdict.error}" for play in plays if play.verdict and play.verdict.error
    )
    successes = sum(bool(play.verdict and play.verdict.success) for _, play in scored)
    best = ""
    if scored:
        score, play = max(scored, key=lambda pair: pair[0] or 0.0)
        best = f"{play.task.task_id}: {_shown(play)} scored {score:g}"
    return Outcome(tuple(float(score or 0.0) for score, _ in scored), successes, errors, best)


def _shown(play: Trajectory) -> str:
    """Return the actions of a play in words."""
    parts = [
        f"{step.action.call.name}({', '.join(f'{v!r:.60}' for v in step.action.call.arguments.values())})"
        if step.action.call is not None
        else f"the answer {step.action.text!r:.60}"
        for step in play.steps
    ]
    return ", ".join(parts[-4:])


def _random(spec: EnvSpec, number: int, start: Context) -> Generator[Action, Context, Any]:
    rng, context = random.Random(f"chance {start.task.task_id} {number}"), start
    schemas = [s for s in start.tools if spec.sandboxed or s["function"]["name"] not in spec.irreversible]
    for _ in range(CHANCE_STEPS if schemas else 0):
        context = yield drawn_call(rng.choice(schemas), context, rng)
    yield Action("Done.", thought="Done.")


def _blind(spec: EnvSpec, number: int, start: Context) -> Generator[Action, Context, Any]:
    rng, nothing = random.Random(f"blind {start.task.task_id} {number}"), Context(start.task, "", start.tools, "")
    schemas = [s for s in start.tools if spec.sandboxed or s["function"]["name"] not in spec.irreversible]
    for schema in rng.sample(schemas, len(schemas)):
        yield drawn_call(schema, nothing, rng)


def _number(spec: EnvSpec, name: str, number: int, start: Context) -> Generator[Action, Context, Any]:
    """Return the play of that number of a reward seeker."""
    for at, play in enumerate(SEEKERS[name](spec, start)):
        if at == number:
            return play
    raise EnvironmentFault(f"{spec.name}: the same task begins differently, so {name} cannot be played")
