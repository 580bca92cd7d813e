"""One attempt while it is played: its history, its costs, and the record that it ends with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.play import begin, extend
from offline_agent.envs.pool import Lane, as_fault
from offline_agent.errors import EnvironmentFault
from offline_agent.policies.base import ProposeRequest
from offline_agent.records import Action, Context, Step, Task, Verdict, cut_verdict
from offline_agent.rollouts.attempts import Attempt, AttemptRequest
from offline_agent.seeding import mix


class BrokenEnvironment(NamedTuple):
    """A fault that the environment raised. A time-out, which the pool itself answers, is a bare `EnvironmentFault`."""

    fault: EnvironmentFault


@dataclass(slots=True, eq=False)
class RunningAttempt:
    """An attempt while it is played.

    Attributes:
        request: The attempt to be played.
        policy: `candidate` or `against`.
        seed: Seed that those of its actions derive from.
        lane: Where its environment's calls are made.
        episode: Its environment; None before it opened, and once its thread hangs in it.
        context, steps: The history so far.
        action: The action that is being executed; None while the policy is asked.
        states: Fingerprints of the states that were reached, where they are read; the last is the present one.
        versions: Of the weights that answered, where they may change.
        generated, prefilled, tool_calls: See `Attempt`.
        busy: The pool is working on the episode: no other thread may touch it.
    """

    request: AttemptRequest
    policy: str
    seed: int
    lane: Lane
    episode: Episode | None = None
    context: Context | None = None
    steps: list[Step] = field(default_factory=list)
    action: Action | None = None
    states: list[str | None] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    generated: int = 0
    prefilled: int = 0
    tool_calls: int = 0
    busy: bool = False

    def record(self, step: Step) -> None:
        """Record a step that was executed, or that ends the attempt."""
        assert self.context is not None  # opened
        self.steps.append(step)
        self.context = extend(self.context, step)

    def opened(self, value: Opened, states: bool) -> Attempt | None:
        """Begin with an environment that was opened; return the record of the attempt where it is over already."""
        self.episode, self.context, state = value
        if states:
            self.states.append(state)
        over = self.episode.terminated
        return self.unscored("fault", "the episode was over before the first action") if over else None

    def next_request(self, temperature: float | None, max_tokens: int | None) -> ProposeRequest:
        """Return the request for the next action; its seed depends on the attempt's and on the turn alone.

        Args:
            temperature: Of attempts that have no temperature of their own.
            max_tokens: Most tokens of the action.
        """
        assert self.context is not None  # opened
        request, depth = self.request, self.context.depth
        if request.mode == "greedy":
            temperature = 0.0
        elif request.temperature is not None:
            temperature = request.temperature
        return ProposeRequest(self.context.shown, (mix(self.seed, depth),), temperature, max_tokens)

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
            context.shown.cache = None  # the policy's own, which would be kept alive with the attempt
        request = self.request
        return Attempt(
            self.policy, request.mode, request.task, request.number, self.context, tuple(self.steps), verdict,
            terminated, cut_by is not None, cut_by, end_score, fingerprint, self.generated, self.prefilled,
            self.tool_calls,
            states=tuple(self.states[: len(self.steps)]), versions=tuple(self.versions[: len(self.steps)]),
        )  # fmt: skip

    def cut(self, by: str, evidence: Mapping[str, Any], end: Verdict | None, fingerprint: str | None) -> Attempt:
        """Return the attempt, which a limit of the policy's own cut: a failure worth 0.

        Args:
            by: One of `records.POLICY_CUTS`.
            evidence: The limit.
            end: The environment's verdict on the state at the cut; None where it gave none.
            fingerprint: Of that state.
        """
        evidence = {**evidence, **({} if end is None else {"state_at_the_cut": end.to_json()})}
        return self.over(cut_verdict(by, **evidence), False, by, None if end is None else end.score, fingerprint)

    def unscored(self, cut_by: str, reason: str) -> Attempt:
        """Return the attempt, cut by something that is neither a success nor a failure of the policy."""
        return self.over(Verdict(None, None, "evaluation", error=reason), False, cut_by)

    def faulted(self, value: BrokenEnvironment | EnvironmentFault) -> Attempt:
        """Return the attempt, whose environment broke or hangs."""
        if isinstance(value, BrokenEnvironment):
            return self.unscored("fault", str(value.fault))
        self.episode = None  # its thread hangs in it: it must not be used again
        return self.unscored("time", str(value))


class Opened(NamedTuple):
    """An environment in which a task was begun.

    Attributes:
        episode: The environment.
        context: The history so far.
        fingerprint: Of the present state, where it was read; None otherwise, and where the environment offers none.
    """

    episode: Episode
    context: Context
    fingerprint: str | None


def open_episode(spec: EnvSpec, spare: Episode | None, task: Task, fingerprint: bool) -> Opened:
    """Open an environment, or take the spare one, and begin the task (see `play.begin`).

    With `fingerprint` the present state's is read.
    """
    episode = spec.open() if spare is None else spare
    try:
        context = begin(episode, task)
        state = episode.fingerprint() if fingerprint else None
        return Opened(episode, context, state)
    except EnvironmentFault:
        with contextlib.suppress(EnvironmentFault):
            episode.close()
        raise


def state_of(episode: Episode) -> tuple[Verdict, str | None]:
    """Return the verdict on an episode's present state, and the state's fingerprint."""
    return episode.verdict(), episode.fingerprint()


def guarded(job: Callable[[], Any]) -> Any:
    """Return a job's result, or a `BrokenEnvironment` for its exception."""
    try:
        return job()
    except BaseException as error:
        return BrokenEnvironment(as_fault(error))
