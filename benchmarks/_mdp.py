"""Random tasks whose true action values are known: trees of choices with a stochastic policy and hidden ends."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

from offline_agent.envs.pool import EnvPool
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.engines import InlineEngine
from offline_agent.records import Action, Context, Task, ToolCall, Verdict
from offline_agent.search.restore import Opening, Outcome
from offline_agent.search.scheduler import Scheduler
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import Edge, SearchTree
from offline_agent.search.tree_search import TreeSearch
from offline_agent.seeding import derive_seed

BRANCHING = 4
State = tuple[int, ...]


class Choices:
    """One task: four actions a step, four to eight steps, a success or part of one at each end.

    Steps differ in how much they matter (some not at all), some actions end the episode early, the policy is a little
    better than chance.

    Args:
        seed: Names the task.
        partial: Ends score 0, ¼, ½, ¾ or 1 instead of 0 or 1.
    """

    def __init__(self, seed: int, partial: bool) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.partial = partial
        self.depth = rng.choice((4, 5, 6, 7, 8))
        self.threshold = rng.gauss(1.5, 1.0)
        self.early = rng.choice((0.0, 0.05, 0.15))
        self.moves = cache(self._moves)
        self.value = cache(self._value)  # per task, so that it goes when the task goes

    def _moves(self, state: State) -> tuple[tuple[float, ...], tuple[float, ...], tuple[bool, ...]]:
        """Effects of the actions, the policy's probabilities, and which end the episode."""
        rng = random.Random(derive_seed(self.seed, *state))
        weight = rng.choice((0.0, 0.3, 1.0, 1.0, 2.0))
        effects = tuple(weight * rng.gauss(0, 1) for _ in range(BRANCHING))
        logits = [0.8 * rng.gauss(0, 1) + 0.3 * effect for effect in effects]
        top = max(logits)
        raw = [math.exp(logit - top) for logit in logits]
        total = sum(raw)
        return effects, tuple(x / total for x in raw), tuple(rng.random() < self.early for _ in range(BRANCHING))

    def over(self, state: State) -> bool:
        """Whether the episode is over."""
        return len(state) == self.depth or (len(state) > 0 and self.moves(state[:-1])[2][state[-1]])

    def score(self, state: State) -> float:
        """The end's score."""
        effects = sum(self.moves(state[:i])[0][a] for i, a in enumerate(state))
        rng = random.Random(derive_seed(self.seed, "end", *state))
        margin = effects + 0.7 * rng.gauss(0, 1) - self.threshold
        if self.partial:
            return min(1.0, max(0.0, round((margin + 1.0) * 2) / 4))
        return float(margin > 0)

    def _value(self, state: State) -> float:
        """V^π, exactly."""
        if self.over(state):
            return self.score(state)
        return sum(p * self.value((*state, a)) for a, p in enumerate(self.moves(state)[1]))


class ChoicesWorld:
    """The task as the search sees it."""

    one_thread = False

    def __init__(self, task: Choices) -> None:
        self._task = task

    def open(self) -> Opening:
        return Opening("start", "", (), _key, ())

    def execute(self, state: State, action: Action, replay: bool = True) -> Outcome:
        after = (*state, int(action.text))
        if not self._task.over(after):
            return Outcome("on", "tool", False, state=after)
        score = self._task.score(after)
        return Outcome("over", "tool", True, verdict=Verdict(score, score == 1.0, "choices"), state=after)

    def remember(self, state: State, action: Action, observation: str | None, fingerprint: str | None) -> Any:
        return (*state, int(action.text))

    def close(self) -> None:
        return None


class ChoicesPolicy:
    """Samples from the task's own probabilities."""

    name, renderer, batch_invariant, max_tokens = "choices", None, True, 0
    identity: dict[str, object] = {}

    def __init__(self, task: Choices) -> None:
        self._task = task

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Proposals]:
        return [Proposals(tuple(self._draw(r.context, seed, r.temperature) for seed in r.seeds)) for r in requests]

    def _draw(self, context: Context, seed: int, temperature: float | None) -> Action:
        probabilities = self._task.moves(state_of(context))[1]
        if temperature == 0.0:
            way = max(range(BRANCHING), key=lambda a: probabilities[a])
        else:
            way = random.Random(seed).choices(range(BRANCHING), probabilities)[0]
        return Action(str(way), call=ToolCall("go", {"way": way}), logps=(math.log(probabilities[way]),))


def search(task: Choices, **settings: Any) -> SearchTree:
    """Search one task to its end."""
    options = {"simulations": 64, "max_steps": task.depth + 1, **settings}
    one = TreeSearch(
        Task(f"choices-{task.seed}", "train", {}), ChoicesWorld(task), SearchSettings(**options), seed=task.seed
    )
    scheduler = Scheduler(InlineEngine(ChoicesPolicy(task)), EnvPool(0, None))  # type: ignore[arg-type]
    tree = next(iter(scheduler.run([(one, ())]))).tree
    assert tree is not None
    return tree


def state_of(context: Context) -> State:
    """The choices made so far."""
    return tuple(int(action.text) for action in context.actions())


def state_after(edge: Edge) -> State:
    """The choices made with an edge."""
    return (*state_of(edge.parent.context), int(edge.actions[0].text))


def _key(action: Action) -> str:
    return action.text
