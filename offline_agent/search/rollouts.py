"""Fresh rollouts of the policy from a given history, without a tree: for counterfactual estimates.

An outage of the policy is told from a request that it cannot answer as in a search (`policies.outage`,
`simulation.RETRIES`).
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Sequence
from functools import partial

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.errors import EnvironmentFault
from offline_agent.policies.base import Answer, Engine, Proposals, ProposeRequest
from offline_agent.policies.outage import Outage
from offline_agent.records import Action, Context, Task, Verdict
from offline_agent.search.simulation import RETRIES
from offline_agent.seeding import derive_seed, mix


class Rollouts:
    """Plays n episodes from one history to their end, all of them at once.

    Args:
        spec: The environment.
        engine: The policy's engine.
        seed: The run's seed; rollout i of a history depends on (seed, task, actions, i) alone.
        max_steps: Actions after which an episode is cut.
        temperature: Of the policy; None = its own.
        most_policy_errors: Failures of the policy in a row after which it is given up.
    """

    def __init__(
        self,
        spec: EnvSpec,
        engine: Engine,
        seed: int,
        max_steps: int,
        temperature: float | None = None,
        most_policy_errors: int = 40,
    ) -> None:
        self._spec = spec
        self._line = _Line(engine, most_policy_errors)
        self._seed = seed
        self._max_steps = max_steps
        self._temperature = temperature
        self.generated = 0
        self.tool_calls = 0

    def __call__(self, task: Task, actions: Sequence[Action], n: int) -> list[Verdict]:
        """Return n verdicts; one that could not be judged, or was cut, has no score and says why.

        Raises:
            EnvironmentFault: The environment does not open, or ends before the given actions do.
            PolicyError: The policy failed too often in a row.
        """
        episodes = [self._start(task, actions) for _ in range(n)]
        base = derive_seed(self._seed, "rollouts", task.task_id, *[action.text for action in actions])
        verdicts: list[Verdict | None] = [None] * n
        contexts = [context for _, context in episodes]
        try:
            for i, (episode, _) in enumerate(episodes):
                if episode.terminated:
                    verdicts[i] = episode.verdict()
                else:
                    self._ask(i, contexts[i], mix(base, i))
            tries = [0] * n
            while any(verdict is None for verdict in verdicts):
                i, request, answer = self._line.next()
                if not isinstance(answer, Proposals) and tries[i] < RETRIES:
                    tries[i] += 1
                    self._line.ask(i, request)
                    continue
                tries[i] = 0
                verdict, context = self._advance(episodes[i][0], contexts[i], answer)
                verdicts[i], contexts[i] = verdict, context
                if verdict is None:
                    self._ask(i, context, mix(mix(base, i), context.depth))
        finally:
            for episode, _ in episodes:
                episode.close()
        return [verdict for verdict in verdicts if verdict is not None]

    def _start(self, task: Task, actions: Sequence[Action]) -> tuple[Episode, Context]:
        episode = self._spec.open()
        first = episode.reset(task)
        context = Context(task, episode.system_prompt, episode.tools.schemas, first)
        for action in actions:
            if episode.terminated:
                raise EnvironmentFault(f"task {task.task_id!r} ended before the given {len(actions)} actions did")
            context = self._step(episode, context, action)
        return episode, context

    def _step(self, episode: Episode, context: Context, action: Action) -> Context:
        result = episode.step(action)
        self.tool_calls += 1
        return context.child(action, result.observation, result.role)

    def _ask(self, i: int, context: Context, seed: int) -> None:
        self._line.ask(i, ProposeRequest(context, (seed,), self._temperature))

    def _advance(self, episode: Episode, context: Context, answer: Answer) -> tuple[Verdict | None, Context]:
        if not isinstance(answer, Proposals):
            return _cut(f"the policy failed: {answer}"), context
        action = answer.actions[0]
        self.generated += len(action.token_ids or ())
        if action.fault == "no_end":
            return _cut("a turn never ended: token limit"), context
        try:
            context = self._step(episode, context, action)
        except EnvironmentFault as fault:
            return _cut(str(fault)), context
        if episode.terminated:
            return episode.verdict(), context
        if context.depth >= self._max_steps:
            return Verdict(0.0, False, "max_steps", evidence={"truncated": True}), context
        return None, context


class _Line:
    """Asks an engine, and gives back its answers; failures where they are no outage.

    Args:
        engine: The policy's.
        most_errors: Failures in a row after which it is given up.
    """

    def __init__(self, engine: Engine, most_errors: int) -> None:
        self._engine = engine
        self._inbox: queue.SimpleQueue[tuple[int | None, ProposeRequest, int, Answer]] = queue.SimpleQueue()
        self._outage: Outage[tuple[int, ProposeRequest, Answer]] = Outage(most_errors)
        self._free: deque[tuple[int, ProposeRequest, Answer]] = deque()
        self._under_way = 0

    def ask(self, i: int | None, request: ProposeRequest) -> None:
        """Send a request; None = nobody's, it shows whether the policy answers."""
        self._under_way += 1
        self._outage.expect(request)
        self._engine.submit(request, partial(_put, self._inbox, i, request, self._outage.answers))

    def next(self) -> tuple[int, ProposeRequest, Answer]:
        """Wait for an answer; return whose, to what, and what.

        Raises:
            PolicyError: The policy failed too often in a row.
        """
        outage = self._outage
        while not self._free:
            i, request, before, answer = self._inbox.get()
            self._under_way -= 1
            answered = isinstance(answer, Proposals)
            if answered:
                self._free.extend(outage.answered(request))
            else:
                outage.failed(answer)
            if i is not None and (answered or not outage.holds((i, request, answer), before)):
                self._free.append((i, request, answer))
            if outage and not self._under_way:
                self._try_again()
        return self._free.popleft()

    def _try_again(self) -> None:
        """Send again what failed, beside something that the policy has answered before, or the first that was asked."""
        probe = self._outage.probe()
        for i, request, _ in self._outage.release():
            self.ask(i, request)
        if probe is not None:
            self.ask(None, probe)


def _put(
    inbox: queue.SimpleQueue[tuple[int | None, ProposeRequest, int, Answer]],
    i: int | None, request: ProposeRequest, before: int, answer: Answer,
) -> None:  # fmt: skip
    inbox.put((i, request, before, answer))


def _cut(reason: str) -> Verdict:
    return Verdict(None, None, "rollout", error=reason)
