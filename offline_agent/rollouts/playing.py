"""One attempt while it is played, and what the pool does with its environment. Knows no policy and no queue."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from offline_agent.envs.base import EnvSpec, Episode, StepResult
from offline_agent.envs.pool import as_fault
from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Context, Step, Task, Verdict, cut_verdict
from offline_agent.rollouts.attempts import Attempt


class Ask(NamedTuple):
    """An attempt to be played.

    Attributes:
        task: At what.
        mode: `greedy` is played at temperature 0.
        number: Which attempt of this mode and task; its actions depend on the run's seed, the task and this alone.
        temperature: Of the others; None = what `Episodes` was given.
        prefix: Steps of another attempt at the task that this one begins with: they are carried out again, and it is
            unscored where the environment answers differently.
        epsilon: Chance of each turn that a tool is drawn instead of an action: of `DRAWN` sampled actions one is taken,
            every tool among them with the same chance.
        explored: Turns of the prefix whose tool was drawn.
        source: Number of the attempt that the prefix is of, where this one branches from it; None = it begins at the
            beginning, or with turns that are nobody's.
    """

    task: Task
    mode: str
    number: int
    temperature: float | None = None
    prefix: tuple[Step, ...] = ()
    epsilon: float = 0.0
    explored: tuple[int, ...] = ()
    source: int | None = None


DRAWN = 4
"""Actions that are sampled where a tool is drawn."""


class Stepped(NamedTuple):
    """What one action gave; verdict and fingerprint only where it was the last."""

    result: StepResult
    key: str
    verdict: Verdict | None
    fingerprint: str | None


class Broken(NamedTuple):
    """An environment's fault; a time-out, which the pool itself answers, is a bare `EnvironmentFault`."""

    fault: EnvironmentFault


@dataclass(slots=True, eq=False)
class Game:
    """An attempt while it is played.

    Attributes:
        ask: What was asked for.
        policy: `candidate` or `against`.
        seed: What the seeds of its actions derive from.
        episode: Its environment; None before it opened, and where its thread hangs in it.
        context, steps: The history so far.
        action: The action that is being executed; None while the policy is asked.
        explored: Turns whose tool was drawn.
        generated, prefilled, tool_calls: See `Attempt`.
        busy: The pool is working on the episode: nobody else may touch it.
        failures: How often the policy failed the request that is due.
    """

    ask: Ask
    policy: str
    seed: int
    episode: Episode | None = None
    context: Context | None = None
    steps: list[Step] = field(default_factory=list)
    action: Action | None = None
    explored: list[int] = field(default_factory=list)
    generated: int = 0
    prefilled: int = 0
    tool_calls: int = 0
    busy: bool = False
    failures: int = 0

    def record(self, step: Step) -> None:
        """Note a step that was executed, or that ends the attempt."""
        assert self.context is not None  # opened
        self.steps.append(step)
        self.context = self.context.child(step.action, step.observation, step.role)

    def over(
        self,
        verdict: Verdict,
        terminated: bool,
        cut_by: str | None,
        end_score: float | None = None,
        fingerprint: str | None = None,
    ) -> Attempt:
        """Return the attempt, now that it is over."""
        for context in self.context.lineage() if self.context is not None else ():
            context.cache = None  # the policy's own, which would be kept alive with the attempt
        return Attempt(
            self.policy, self.ask.mode, self.ask.task, self.ask.number, self.context, tuple(self.steps), verdict,
            terminated, cut_by is not None, cut_by, end_score, fingerprint, self.generated, self.prefilled,
            self.tool_calls, explored=tuple(self.explored),
            branch=None if self.ask.source is None else (self.ask.source, len(self.ask.prefix)),
        )  # fmt: skip

    def cut(self, by: str, evidence: Mapping[str, Any], end: Verdict | None, fingerprint: str | None) -> Attempt:
        """Return the attempt, which a limit of the policy's own cut: a failure worth 0.

        Args:
            by: One of `records.POLICY_CUTS`.
            evidence: What the limit was.
            end: The environment's verdict on the state at the cut; None where it gave none.
            fingerprint: Of that state.
        """
        evidence = {**evidence, **({} if end is None else {"state_at_the_cut": end.to_json()})}
        return self.over(cut_verdict(by, **evidence), False, by, None if end is None else end.score, fingerprint)

    def unscored(self, cut_by: str, reason: str) -> Attempt:
        """Return the attempt, which something cut that says nothing of success or failure."""
        return self.over(Verdict(None, None, "evaluation", error=reason), False, cut_by)


def drawn(actions: Sequence[Action], chance: random.Random) -> Action:
    """Return one of some sampled actions: every tool among them has the same chance; answers count as one tool."""
    by_tool: dict[str, list[Action]] = {}
    for action in actions:
        by_tool.setdefault(action.call.name if action.call is not None else "", []).append(action)
    return chance.choice(by_tool[chance.choice(sorted(by_tool))])


def begin(spec: EnvSpec, spare: Episode | None, task: Task, prefix: Sequence[Step] = ()) -> tuple[Episode, str]:
    """Open an environment, or take the spare one, reset it, and carry `prefix` out; return it and what `reset` said."""
    episode = spec.open() if spare is None else spare
    try:
        first = episode.reset(task)
        for number, step in enumerate(prefix):
            result = episode.step(step.action)
            if result.observation != step.observation or result.terminated:
                raise EnvironmentFault(
                    f"{spec.name} answered action {number} of a repeated history differently; it is not deterministic"
                )
        return episode, first
    except EnvironmentFault:
        with contextlib.suppress(EnvironmentFault):
            episode.close()
        raise


def advance(episode: Episode, action: Action, last: bool) -> Stepped:
    """Carry an action out; judge the state it leads to where the episode ends there, or is cut (`last`)."""
    key = episode.tools.canonical_key(action)
    result = episode.step(action)
    if not result.terminated and not last:
        return Stepped(result, key, None, None)
    return Stepped(result, key, episode.verdict(), episode.fingerprint())


def judged(episode: Episode) -> tuple[Verdict, str | None]:
    """Return the verdict on an episode's state, and the state's fingerprint."""
    return episode.verdict(), episode.fingerprint()


def guarded(job: Callable[[], Any]) -> Any:
    """Return what a job returns, or `Broken` for what it raises."""
    try:
        return job()
    except BaseException as error:
        return Broken(as_fault(error))
