"""Running recorded actions again in a fresh episode, and what came of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Context, Step, Task, Verdict

if TYPE_CHECKING:
    from offline_agent.envs.base import EnvSpec, Episode

T = TypeVar("T")
Goal = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay, complete or cut short.

    Attributes:
        context: The last context reached.
        steps: One per action that was taken; fewer than asked where the episode was over sooner.
        verdict: The end state's verdict.
        terminated: The episode is over by itself.
        start_verdict: The verdict right after `reset`.
        start_goal: What the state achieved right after `reset`; None where the environment does not say.
        goals: What the state achieves after each step; None where the environment does not say.
    """

    context: Context
    steps: tuple[Step, ...]
    verdict: Verdict
    terminated: bool
    start_verdict: Verdict
    start_goal: Goal | None
    goals: tuple[Goal | None, ...]

    @property
    def verified(self) -> bool:
        """Whether the end state was judged a success."""
        return self.verdict.success is True


class Replayer:
    """Replays actions, one episode at a time; an environment that is dear to start (`replay_only`) is kept and reset.

    Args:
        spec: The environment.
        seconds: What each action of a replay may take; an episode that takes longer than all of them together is
            abandoned. None = no limit.
        reset_seconds: What opening and resetting it may take beside them; None = as long as an action.
    """

    def __init__(self, spec: EnvSpec, seconds: float | None = 60.0, reset_seconds: float | None = None) -> None:
        self._spec = spec
        self._seconds = seconds
        self._reset_seconds = seconds if reset_seconds is None else reset_seconds
        self._episode: Episode | None = None
        self._worker = _Worker()
        self.count = 0
        self.tool_calls = 0

    def run(self, task: Task, actions: Sequence[Action]) -> Replay:
        """Reset a fresh episode to `task` and take the actions until they are used up or the episode is over.

        Raises:
            EnvironmentFault: The environment broke or ran past the time limit.
        """
        self.count += 1
        episode = self._episode if self._episode is not None else self._spec.open()
        self._episode = None
        try:
            answer = self._limited(lambda: self._run(episode, task, actions), len(actions))
        except BaseException:
            # A broken or hanging episode is never used again, and closing it could hang too.
            threading.Thread(target=episode.close, daemon=True).start()
            raise
        if self._spec.replay_only:
            self._episode = episode
        else:
            episode.close()
        return answer

    def close(self) -> None:
        """Close the episode that is kept open, and end the thread."""
        self._worker.close()
        self._worker = _Worker()
        if self._episode is not None:
            self._episode.close()
            self._episode = None

    def _limited(self, call: Callable[[], Replay], actions: int) -> Replay:
        if self._seconds is None or self._reset_seconds is None:
            return call()
        limit = self._reset_seconds + actions * self._seconds
        answer = self._worker.call(call, limit)
        if answer is None:
            self._worker = _Worker()
            raise EnvironmentFault(
                f"a replay of {actions} actions took longer than {limit:g} s (limits.reset_seconds, and "
                "limits.step_seconds for each)"
            )
        return answer

    def _run(self, episode: Episode, task: Task, actions: Sequence[Action]) -> Replay:
        first = episode.reset(task)
        context = Context(task, episode.system_prompt, episode.tools.schemas, first)
        start_verdict, start_goal = episode.verdict(), episode.achieved_goal()
        steps: list[Step] = []
        goals: list[Goal | None] = []
        for action in actions:
            if episode.terminated:
                break
            self.tool_calls += 1
            result = episode.step(action)
            key = episode.tools.canonical_key(action)
            steps.append(Step(action, key, result.observation, result.role, result.fault))
            context = context.child(action, result.observation, result.role)
            goals.append(episode.achieved_goal())
        verdict = episode.verdict() if steps else start_verdict
        return Replay(context, tuple(steps), verdict, episode.terminated, start_verdict, start_goal, tuple(goals))


def extend(prefix: Context, steps: Sequence[Step], closing: bool = True) -> Context:
    """Return `prefix` extended by the steps.

    Args:
        prefix: The history so far.
        steps: What follows.
        closing: False leaves out the last step's observation, so that the history ends with the policy's turn.
    """
    context = prefix
    for number, step in enumerate(steps, 1):
        last = number == len(steps) and not closing
        context = context.child(step.action, None if last else step.observation, step.role)
    return context


def without_logps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with their ids kept and their log-probabilities dropped.

    They were measured after another history, so they say nothing of the present one.
    """
    return tuple(replace(step, action=replace(step.action, logps=None)) for step in steps)


class _Worker:
    """A thread that makes one call after the other, so that a call can be given a time limit.

    One that exceeds its limit takes its thread with it; the next call gets another.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._started = False

    def call(self, call: Callable[[], T], seconds: float) -> T | None:
        """Return what the call returns, or None where it has not returned within the seconds; pass on what it raises.

        A worker whose call ran past its limit must not be used again.
        """
        if not self._started:
            # Both queues go as arguments: the thread must not keep the worker alive.
            threading.Thread(target=_serve, args=(self._calls, self._answers), daemon=True).start()
            self._started = True
        self._calls.put(call)
        try:
            value, error = self._answers.get(timeout=seconds)
        except queue.Empty:
            self._calls.put(None)
            return None
        if error is not None:
            raise error
        return cast(T, value)

    def close(self) -> None:
        """Let the thread end."""
        self._calls.put(None)


def _serve(calls: queue.SimpleQueue[Any], answers: queue.SimpleQueue[Any]) -> None:
    while (call := calls.get()) is not None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))
