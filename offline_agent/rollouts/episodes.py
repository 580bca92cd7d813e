"""Plays attempts: many episodes in flight over one engine, each as fast as policy and environment answer it.

One thread (the caller's) owns all episodes; generation runs in the engine, environments in the pool. An attempt's
actions depend on (seed, task, number) alone, so they are the same for any number of episodes in flight (given a policy
whose answers do not depend on the batch).
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import ContextFull, EnvironmentFault, PolicyError
from offline_agent.policies.base import Answer, Engine, Proposals, ProposeRequest
from offline_agent.policies.outage import Outage
from offline_agent.records import Context, Step
from offline_agent.rollouts.attempts import Attempt
from offline_agent.rollouts.playing import DRAWN, Ask, Broken, Game, Stepped, advance, begin, drawn, guarded, judged
from offline_agent.search.simulation import RETRIES
from offline_agent.seeding import derive_seed, mix

__all__ = ["Ask", "Episodes"]

Handle = Callable[[Any, Any], Attempt | None]
"""Takes a game, or None, and what was waited for; returns the attempt where that ends it."""

SPARE = 4  # environments kept to be reset again where starting one may be dear
PATIENCE = 16  # failed requests in a row, beyond one for each episode in flight, after which the policy is given up


class Episodes:
    """Plays attempts of one policy.

    Args:
        spec: The environment.
        engine: Answers requests for actions.
        pool: Steps environments, each step under its time limit.
        policy: `candidate` or `against`; noted on every attempt.
        seed: The run's seed.
        max_steps: Actions after which an attempt is cut: a failure of its own kind.
        temperature: Of sampled attempts.
        max_tokens: Most tokens of one action; None = the policy's own.
        in_flight: Attempts played at once.
        reset_seconds: Time limit of opening and resetting an environment; None = the pool's own. Each call of a prefix
            that is carried out again adds the pool's own.
        segment: The renderer's `segment`, by which prompt tokens are counted; None = as the policy's answers say.
        answered_before: The policy has answered in this run: if it fails all that is left, that is no outage.
        tick: Called about every half second, for progress.
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
        tick: Callable[[], None] | None = None,
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
        self._answered_before = answered_before
        self._tick = tick
        self._inbox: queue.SimpleQueue[tuple[Handle, Game | None, Any]] = queue.SimpleQueue()
        self._games: set[Game] = set()
        self._spare: list[Episode] = []
        self._outage: Outage[tuple[Game, ProposeRequest, PolicyError]] = Outage(in_flight + PATIENCE)
        self.requests = 0
        self.prefilled = 0
        self.cached = 0

    def play(self, asks: Iterable[Ask]) -> Iterator[Attempt]:
        """Yield each attempt when it is over, in the order of ending.

        A request that the policy failed is sent again once it has answered something else, and ends its attempt
        unscored where it fails each time. So an outage is not taken for something about the tasks: it passes, or the
        run is given up, and plays what was under way when it goes on.

        Args:
            asks: What to play; drawn from lazily.

        Raises:
            PolicyError: The policy failed `in_flight` + 16 times in a row. What was not yielded can be asked for
                again.
            EnvironmentFault: The environment hung too often.
        """
        source, ticked = iter(asks), time.monotonic()
        try:
            while True:
                while len(self._games) < self._in_flight and (ask := next(source, None)) is not None:
                    self._open(ask)
                if not self._games:
                    return
                try:
                    handle, game, value = self._inbox.get(timeout=0.25)
                except queue.Empty:
                    pass
                else:
                    over = handle(game, value) if game is None or game in self._games else None
                    if over is not None and game is not None:
                        self._end(game, over.cut_by not in ("fault", "time"))
                        yield over
                    if self._outage and len(self._outage) == len(self._games):
                        self._try_again()
                if (now := time.monotonic()) - ticked > 0.5:
                    ticked = now
                    self._pool.reap()
                    if self._tick is not None:
                        self._tick()
        finally:
            self._abandon()

    # -- one attempt -------------------------------------------------------------------------------------------------

    def _open(self, ask: Ask) -> None:
        game = Game(ask, self._policy, derive_seed(self._seed, "attempt", ask.task.task_id, ask.number))
        self._games.add(game)
        spare = self._spare.pop() if self._spare else None
        job = partial(begin, self._spec, spare, ask.task, ask.prefix)
        self._submit(game, job, self._opened, self._pool.limit_of(self._reset_seconds, len(ask.prefix)))

    def _opened(self, game: Game, value: Any) -> Attempt | None:
        if isinstance(value, Broken | EnvironmentFault):
            return self._fault(game, value)
        game.episode, first = value
        tools, system = game.episode.tools, game.episode.system_prompt
        game.context = Context(game.ask.task, system, tools.schemas, first)
        for step in game.ask.prefix:
            game.record(step)
        game.tool_calls = len(game.ask.prefix)
        game.explored += game.ask.explored
        if game.episode.terminated:
            return game.unscored("fault", "the episode was over before the first action")
        self._request(game)
        return None

    def _request(self, game: Game) -> None:
        context = game.context
        assert context is not None  # opened
        sampled, game.action = game.action, None
        if self._segment is not None:
            try:
                known = sampled.token_ids if sampled is not None else None
                game.prefilled += len(self._segment(context)) - len(known or ())
            except Exception as error:  # a history that cannot be rendered fails alone
                self._inbox.put((_failed, game, PolicyError(f"{type(error).__name__}: {error}")))
                return
        given = self._temperature if game.ask.temperature is None else game.ask.temperature
        temperature = 0.0 if game.ask.mode == "greedy" else given
        seeds: tuple[int, ...] = (mix(game.seed, context.depth),)
        if game.ask.epsilon and _chance(game).random() < game.ask.epsilon:
            seeds = tuple(mix(game.seed, context.depth + (n << 32)) for n in range(DRAWN))
        self._send(game, ProposeRequest(context, seeds, temperature, self._max_tokens))

    def _send(self, game: Game, request: ProposeRequest) -> None:
        self.requests += 1
        self._engine.submit(request, partial(self._post, partial(self._answered, request, self._outage.answers), game))

    def _answered(self, request: ProposeRequest, before: int, game: Game, answer: Answer) -> Attempt | None:
        if isinstance(answer, ContextFull):
            self._cut(game, "context", str(answer))
            return None
        if not isinstance(answer, Proposals):
            self._outage.failed(answer)
            if self._outage.holds((game, request, answer), before):
                return None
            return self._again(request, game, answer)
        self._answer(request)
        game.failures = 0
        action, usage = answer.actions[0], answer.usage
        if len(answer.actions) > 1:
            assert game.context is not None
            action = drawn(answer.actions, _chance(game))
            game.explored.append(game.context.depth)
        game.action = action
        sampled = [len(each.token_ids) for each in answer.actions if each.token_ids is not None]
        game.generated += sum(sampled) if sampled else usage.generated
        if self._segment is None:
            game.prefilled += usage.prefilled
        self.prefilled += usage.prefilled
        self.cached += usage.cached
        assert game.episode is not None and game.context is not None  # opened
        if action.fault == "no_end":
            earned = 0.0 if self._spec.turn_rewards else None
            game.record(Step(action, game.episode.tools.canonical_key(action), None, "user", action.fault, earned))
            keys = "policy.max_tokens; in refine_grpo rollouts.max_tokens"
            self._cut(game, "tokens", f"a turn never ended: token limit ({keys})")
            return None
        game.tool_calls += 1
        last = game.context.depth + 1 >= self._max_steps
        self._submit(game, partial(advance, game.episode, action, last), self._stepped)
        return None

    def _stepped(self, game: Game, value: Any) -> Attempt | None:
        action = game.action
        assert action is not None  # answered
        if not isinstance(value, Stepped):
            return self._fault(game, value)
        result, key, verdict, fingerprint = value
        game.record(Step(action, key, result.observation, result.role, result.fault, result.reward))
        if verdict is None:
            self._request(game)
            return None
        if result.terminated:
            return game.over(verdict, True, None, verdict.score, fingerprint)
        return game.cut("max_steps", {"max_steps": self._max_steps}, verdict, fingerprint)

    def _cut(self, game: Game, by: str, reason: str) -> None:
        """Have the state judged at which the policy could not go on, and end the attempt, whatever comes of that."""
        assert game.episode is not None  # opened

        def end(game: Game, value: Any) -> Attempt:
            if not isinstance(value, Broken | EnvironmentFault):
                return game.cut(by, {"reason": reason}, *value)
            if isinstance(value, Broken) and game.episode is not None:
                self._pool.submit(game.episode.close, _ignore)
            game.episode = None  # broken, or its thread hangs in it
            return game.cut(by, {"reason": reason}, None, None)

        self._submit(game, partial(judged, game.episode), end)

    # -- a policy that fails -----------------------------------------------------------------------------------------

    def _answer(self, request: ProposeRequest) -> None:
        """Note that the policy answers: what it failed until now is tried again."""
        for game, failed, fault in self._outage.answered(request):
            self._inbox.put((partial(self._again, failed), game, fault))

    def _again(self, request: ProposeRequest, game: Game, fault: PolicyError) -> Attempt | None:
        """Send a request again that failed while the policy answers others, or end its attempt."""
        game.failures += 1
        if game.failures > RETRIES:
            return _failed(game, fault)
        self._send(game, request)
        return None

    def _try_again(self) -> None:
        """Send again what failed, now that nothing else is under way, beside what the policy has answered before."""
        probe = self._outage.probe()
        for game, request, fault in self._outage.release():
            if probe is None and self._answered_before:
                self._inbox.put((_failed, game, fault))
            else:
                self._send(game, request)
        if probe is not None:
            self.requests += 1
            self._engine.submit(probe, partial(self._post, partial(self._probed, probe), None))

    def _probed(self, probe: ProposeRequest, game: None, answer: Answer) -> None:
        if isinstance(answer, Proposals):
            self._answer(probe)
        else:
            self._outage.failed(answer)

    # -- ends --------------------------------------------------------------------------------------------------------

    def _fault(self, game: Game, value: Broken | EnvironmentFault) -> Attempt:
        if isinstance(value, Broken):
            return game.unscored("fault", str(value.fault))
        game.episode = None  # its thread hangs in it: nobody may touch it again
        return game.unscored("time", str(value))

    def _end(self, game: Game, sound: bool) -> None:
        self._games.discard(game)
        episode, game.episode = game.episode, None
        if episode is None:
            return
        if self._spec.replay_only and sound and len(self._spare) < SPARE:
            self._spare.append(episode)
        else:
            self._pool.submit(episode.close, _ignore)

    def _abandon(self) -> None:
        for game in self._games:
            if game.episode is not None and not game.busy:
                self._pool.submit(game.episode.close, _ignore)
        for episode in self._spare:
            self._pool.submit(episode.close, _ignore)
        self._games, self._spare = set(), []
        self._outage.forget()

    # -- messages ----------------------------------------------------------------------------------------------------

    def _submit(self, game: Game, job: Callable[[], Any], handle: Handle, limit: float | None = None) -> None:
        def free(game: Game, value: Any) -> Attempt | None:
            game.busy = False
            return handle(game, value)

        game.busy = True
        self._pool.submit(partial(guarded, job), partial(self._post, free, game), limit)

    def _post(self, handle: Handle, game: Game | None, value: Any) -> None:
        self._inbox.put((handle, game, value))


def _chance(game: Game) -> random.Random:
    """Return what decides whether, and which, tool is drawn in the game's next turn."""
    assert game.context is not None  # opened
    return random.Random(derive_seed(game.seed, "tool", game.context.depth))


def _failed(game: Game, fault: object) -> Attempt:
    return game.unscored("fault", f"the policy failed: {fault}")


def _ignore(result: Any) -> None:
    """Closing an environment that fails to close changes nothing that was recorded."""
