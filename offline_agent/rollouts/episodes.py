"""Roll-outs: attempts at tasks, many episodes in flight over one policy.

One thread (the caller's) owns all episodes; generation runs in the policy's engine, environments in the pool. An
attempt's actions depend on (seed, task, number) alone, so they are the same for any number of episodes in flight, given
a policy whose answers do not depend on the batch.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.play import Executed, execute, to_step
from offline_agent.envs.pool import EnvPool, Lane
from offline_agent.errors import ContextFull, EnvironmentFault, PolicyError
from offline_agent.policies.base import Engine, Proposals, ProposeRequest
from offline_agent.policies.outage import Gate, RequestQueue, SentRequest
from offline_agent.records import Context, Step
from offline_agent.rollouts.attempts import Attempt, AttemptRequest
from offline_agent.rollouts.running_attempt import BrokenEnvironment, RunningAttempt, guarded, open_episode, state_of
from offline_agent.seeding import derive_seed

__all__ = ["AttemptRequest", "Episodes"]

Handle = Callable[[Any, Any], Attempt | None]
"""Takes a running attempt and an answer; returns the record of the attempt where the answer ends it."""

SPARE = 4  # replay_only environments kept to be reset again, because starting one may be expensive
PATIENCE = 16  # failed requests in a row, beyond one for each episode in flight, after which the run stops


class Episodes:
    """Plays attempts of one policy.

    Args:
        spec: The environment.
        engine: Answers requests for actions.
        pool: Steps environments, each step under its time limit.
        policy: `candidate` or `against`; recorded on every attempt.
        seed: The run's seed.
        max_steps: Actions after which an attempt is cut: a failure of its own kind.
        temperature: Of sampled attempts.
        max_tokens: Most tokens of one action; None = the policy's own.
        in_flight: Attempts played at once.
        reset_seconds: Time limit of opening and resetting an environment; None = the pool's own.
        segment: The renderer's `segment`, by which prompt tokens are counted; None = as the policy's answers say.
        answered_before: The policy has answered in this run: if it fails all that is left, that is no outage.
        states: Record the fingerprint of the state in which each action was taken.
        tick: Called about every half second, for progress.
        gate: See `RequestQueue`; versions are recorded with the actions.
    """

    def __init__(
        self,
        spec: EnvSpec,
        engine: Engine,
        pool: EnvPool,
        *,
        policy: str = "candidate",
        seed: int = 0,
        max_steps: int = 15,
        temperature: float | None = None,
        max_tokens: int | None = None,
        in_flight: int = 64,
        reset_seconds: float | None = None,
        segment: Callable[[Context], Sequence[int]] | None = None,
        answered_before: bool = False,
        states: bool = False,
        tick: Callable[[], None] | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._spec = spec
        self._engine = engine
        self._pool = pool
        self._policy = policy
        self._seed = seed
        self._max_steps = max_steps
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._in_flight = in_flight
        self._reset_seconds = reset_seconds
        self._segment = segment
        self._states = states
        self._tick = tick
        self._inbox: queue.SimpleQueue[tuple[Any, Handle, Any]] = queue.SimpleQueue()
        self._running: set[RunningAttempt] = set()
        self._spare: list[tuple[Lane, Episode]] = []
        self._lanes: list[Lane] = []  # those of attempts that are over
        self._requests: RequestQueue[RunningAttempt] = RequestQueue(
            self._submit_request, lambda sent, answer: self._inbox.put((sent, self._answered, answer)),
            in_flight + PATIENCE, answered_before, gate,
        )  # fmt: skip
        self.requests = 0
        self.prefilled = 0
        self.cached = 0

    def play(self, requests: Iterable[AttemptRequest | None]) -> Iterator[Attempt]:
        """Yield each attempt when it is over, in the order of ending.

        A request that the policy failed is sent again once it has answered something else, and ends its attempt
        unscored where it fails each time. So an outage does not count against the tasks: it passes, or the run stops
        and plays what was under way when it goes on.

        Args:
            requests: Attempts to play; drawn from lazily. None = none for now, and the end where none is under way.

        Raises:
            PolicyError: The policy failed `in_flight` + 16 times in a row. The attempts that were not yielded can be
                requested again.
            EnvironmentFault: The environment hung too often.
        """
        source, ticked = iter(requests), time.monotonic()
        try:
            while True:
                while len(self._running) < self._in_flight and (request := next(source, None)) is not None:
                    self._open(request)
                if not self._running:
                    return
                self._requests.let_in()
                for handle, attempt, value in self._next():
                    over = handle(attempt, value) if attempt in self._running else None
                    if over is not None:
                        self._end(attempt, over.cut_by not in ("fault", "time"))
                        yield over
                if (now := time.monotonic()) - ticked > 0.5:
                    ticked = now
                    self._pool.reap()
                    if self._tick is not None:
                        self._tick()
        finally:
            self._abandon()

    def wake(self) -> None:
        """Have the gate asked now; any thread may call it."""
        self._inbox.put((None, self._answered, None))  # of no attempt that is under way: it is dropped

    def _next(self) -> list[tuple[Handle, RunningAttempt, Any]]:
        """Wait a little for an answer; return the calls that it leads to."""
        try:
            target, handle, value = self._inbox.get(timeout=0.25)
        except queue.Empty:
            return []
        if not isinstance(target, SentRequest):
            return [(handle, target, value)]
        if isinstance(value, Proposals):
            ready = self._requests.answered(target, value)
        elif isinstance(value, ContextFull):
            ready = self._requests.settled(target, value)
        else:
            ready = self._requests.failed(target, value)
        return [(self._answered, attempt, answer) for attempt, answer in (*ready, *self._requests.go_on())]

    # -- one attempt -------------------------------------------------------------------------------------------------

    def _open(self, request: AttemptRequest) -> None:
        seed = derive_seed(self._seed, "attempt", request.task.task_id, request.number)
        lane, spare = self._spare.pop() if self._spare else (None, None)
        if lane is None:
            lane = self._lanes.pop() if self._lanes else self._pool.lane(self._spec.one_thread)
        attempt = RunningAttempt(request, self._policy, seed, lane)
        self._running.add(attempt)
        job = partial(open_episode, self._spec, spare, request.task, self._states)
        self._submit(attempt, job, self._opened, self._pool.limit_of(self._reset_seconds, 0))

    def _opened(self, attempt: RunningAttempt, value: Any) -> Attempt | None:
        if isinstance(value, BrokenEnvironment | EnvironmentFault):
            return attempt.faulted(value)
        over = attempt.opened(value, self._states)
        if over is None:
            self._request(attempt)
        return over

    def _request(self, attempt: RunningAttempt) -> None:
        context = attempt.context
        assert context is not None  # opened
        sampled, attempt.action = context.shown.action, None
        if self._segment is not None:
            try:
                known = sampled.token_ids if sampled is not None else None
                attempt.prefilled += len(self._segment(context)) - len(known or ())
            except Exception as error:  # a history that cannot be rendered fails alone
                fault = PolicyError(f"{type(error).__name__}: {error}")
                self._inbox.put((attempt, self._answered, fault))
                return
        self._requests.send(attempt, attempt.next_request(self._temperature, self._max_tokens))

    def _submit_request(self, request: ProposeRequest, post: Callable[[Any], None]) -> None:
        self.requests += 1
        self._engine.submit(request, post)

    def _answered(self, attempt: RunningAttempt, answer: Any) -> Attempt | None:
        if isinstance(answer, ContextFull):
            self._cut(attempt, "context", str(answer))
            return None
        if not isinstance(answer, Proposals):
            return attempt.unscored("fault", f"the policy failed: {answer}")
        action, usage = answer.actions[0], answer.usage
        assert attempt.context is not None  # opened
        attempt.action = action
        if self._requests.version is not None:
            attempt.versions.append(self._requests.version)
        attempt.generated += usage.generated if action.token_ids is None else len(action.token_ids)
        if self._segment is None:
            attempt.prefilled += usage.prefilled
        self.prefilled += usage.prefilled
        self.cached += usage.cached
        assert attempt.episode is not None  # opened
        if action.fault == "no_end":
            earned = 0.0 if self._spec.turn_rewards else None
            key = attempt.episode.tools.canonical_key(action)
            attempt.record(Step(action, key, None, "user", action.fault, earned))
            keys = "policy.max_tokens; in refine_grpo rollouts.max_tokens"
            self._cut(attempt, "tokens", f"a turn never ended: token limit ({keys})")
            return None
        attempt.tool_calls += 1
        last = attempt.context.depth + 1 >= self._max_steps
        job = partial(execute, attempt.episode, action, last=last, fingerprint=self._states)
        self._submit(attempt, job, self._stepped)
        return None

    def _stepped(self, attempt: RunningAttempt, value: Any) -> Attempt | None:
        action = attempt.action
        assert action is not None  # answered
        if not isinstance(value, Executed):
            return attempt.faulted(value)
        assert attempt.episode is not None  # opened
        result, verdict, fingerprint = value
        if self._states:
            attempt.states.append(fingerprint)
        attempt.record(to_step(attempt.episode.tools, action, result))
        if verdict is None:
            self._request(attempt)
            return None
        if result.terminated:
            return attempt.over(verdict, True, None, verdict.score, fingerprint)
        return attempt.cut("max_steps", {"max_steps": self._max_steps}, verdict, fingerprint)

    def _cut(self, attempt: RunningAttempt, by: str, reason: str) -> None:
        """Judge the state at which the policy could not go on, and end the attempt, whether or not that worked."""
        assert attempt.episode is not None  # opened

        def end(attempt: RunningAttempt, value: Any) -> Attempt:
            if not isinstance(value, BrokenEnvironment | EnvironmentFault):
                return attempt.cut(by, {"reason": reason}, *value)
            if isinstance(value, BrokenEnvironment) and attempt.episode is not None:
                attempt.lane.submit(attempt.episode.close, _ignore)
            attempt.episode = None  # broken, or its thread hangs in it
            return attempt.cut(by, {"reason": reason}, None, None)

        self._submit(attempt, partial(state_of, attempt.episode), end)

    # -- ends --------------------------------------------------------------------------------------------------------

    def _end(self, attempt: RunningAttempt, sound: bool) -> None:
        self._running.discard(attempt)
        episode, attempt.episode = attempt.episode, None
        if episode is not None and self._spec.replay_only and sound and len(self._spare) < SPARE:
            self._spare.append((attempt.lane, episode))
            return
        if episode is not None:
            attempt.lane.submit(episode.close, _ignore)
        self._lanes.append(attempt.lane)

    def _abandon(self) -> None:
        for attempt in self._running:
            if attempt.episode is not None and not attempt.busy:
                attempt.lane.submit(attempt.episode.close, _ignore)
            attempt.lane.close()
        for lane, episode in self._spare:
            lane.submit(episode.close, _ignore)
            lane.close()
        for lane in self._lanes:
            lane.close()
        self._running, self._spare, self._lanes = set(), [], []
        self._requests.forget()

    # -- the pool and the inbox ----------------------------------------------------------------------------------------

    def _submit(
        self, attempt: RunningAttempt, job: Callable[[], Any], handle: Handle, limit: float | None = None
    ) -> None:
        def free(attempt: RunningAttempt, value: Any) -> Attempt | None:
            attempt.busy = False
            return handle(attempt, value)

        attempt.busy = True
        attempt.lane.submit(partial(guarded, job), lambda value: self._inbox.put((attempt, free, value)), limit)


def _ignore(result: Any) -> None:
    """Ignore the result of closing an environment: a failure changes nothing that was recorded."""
