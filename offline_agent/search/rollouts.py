"""Fresh rollouts of the policy from a given history, without a tree: for counterfactual estimates."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from functools import partial

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.errors import EnvironmentFault
from offline_agent.policies.base import Answer, Engine, Proposals, ProposeRequest
from offline_agent.records import Action, Context, Task, Verdict
from offline_agent.seeding import derive_seed, mix


class Rollouts:
    """Plays n episodes from one history to their end, all of them at once.

    Args:
        spec: The environment.
        engine: The policy's engine.
        seed: The run's seed; rollout i of a history depends on (seed, task, actions, i) alone.
        max_steps: Actions after which an episode is cut.
        temperature: Of the policy; None = its own.
    """

    def __init__(
        self, spec: EnvSpec, engine: Engine, seed: int, max_steps: int, temperature: float | None = None
    ) -> None:
        self._spec = spec
        self._engine = engine
        self._seed = seed
        self._max_steps = max_steps
        self._temperature = temperature
        self.generated = 0
        self.tool_calls = 0

    def __call__(self, task: Task, actions: Sequence[Action], n: int) -> list[Verdict]:
        """Return n verdicts; one that could not be judged, or was cut, has no score and says why.

        Raises:
            EnvironmentFault: The environment does not open, or ends before the given actions do.
        """
        episodes = [self._start(task, actions) for _ in range(n)]
        base = derive_seed(self._seed, "rollouts", task.task_id, *[action.text for action in actions])
        inbox: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()
        verdicts: list[Verdict | None] = [None] * n
        contexts = [context for _, context in episodes]
        for i, (episode, _) in enumerate(episodes):
            if episode.terminated:
                verdicts[i] = episode.verdict()
            else:
                self._ask(contexts[i], mix(base, i), partial(_put, inbox, i))
        while any(verdict is None for verdict in verdicts):
            i, answer = inbox.get()
            verdict, context = self._advance(episodes[i][0], contexts[i], answer)
            verdicts[i], contexts[i] = verdict, context
            if verdict is None:
                self._ask(context, mix(mix(base, i), context.depth), partial(_put, inbox, i))
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

    def _ask(self, context: Context, seed: int, done: Callable[[Answer], None]) -> None:
        self._engine.submit(ProposeRequest(context, (seed,), self._temperature), done)

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


def _cut(reason: str) -> Verdict:
    return Verdict(None, None, "rollout", error=reason)


def _put(inbox: queue.SimpleQueue[tuple[int, Answer]], i: int, answer: Answer) -> None:
    inbox.put((i, answer))
