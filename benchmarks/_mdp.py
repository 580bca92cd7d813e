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
from offline_agent.search.environment import Opening, Outcome
from offline_agent.search.scheduler import Scheduler
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import Edge, SearchTree
from offline_agent.search.tree_search import TreeSearch
from offline_agent.seeding import derive_seed

BRANCHING = 4
DONE = 99
State = tuple[int, ...]


class Choices:
    """One task: four actions a step, four to eight steps, a success or part of one at each end.

    Steps differ in how much they matter (some not at all), some actions end the episode early, the policy is a little
    better than chance.

    Args:
        seed: Names the task.
        partial: Ends score 0, ¼, ½, ¾ or 1 instead of 0 or 1.
        equal: Share of the histories after which all four actions come to the same: a mistake there can be mended.
    """

    name = "choices"
    start: State = ()

    def __init__(self, seed: int, partial: bool, equal: float = 0.0) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.partial = partial
        self.equal = equal
        self.depth = rng.choice((4, 5, 6, 7, 8))
        self.max_steps = self.depth + 1
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

    def after(self, state: State, action: int) -> State:
        """Return the state that an action leads to."""
        same = self.equal and random.Random(derive_seed(self.seed, "equal", *state)).random() < self.equal
        return (*state, 0 if same else action)

    def refused(self, state: State, action: int) -> bool:
        """Whether the action is answered with an error: none is."""
        return False

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
        return sum(p * self.value(self.after(state, a)) for a, p in enumerate(self.moves(state)[1]))


class Errand:
    """One task where single actions hardly matter: find a thing in one of three drawers and put it into another one.

    One drawer is open at a time and one thing is held at a time. Calls that make no sense are refused and change
    nothing; other mistakes cost one or two of the calls there are. The policy is an expert with random slips.

    Args:
        seed: Names the task.
    """

    name = "errand"
    max_steps = 12

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.goal, place = rng.sample(range(3), 2)
        # drawers seen (bits), the open one (3: none), the thing's, held (1: it, 2: another), calls, steps
        self.start: State = (0, 3, place, 0, 0, 0)
        self.noise = rng.choice((0.2, 0.3, 0.4, 0.5))
        self.calls = rng.choice((7, 8, 9))
        self.value = cache(self._value)

    def moves(self, state: State) -> tuple[None, tuple[float, ...]]:
        """The policy's probabilities of opening drawer 0, 1, 2, taking the thing, taking another one, putting."""
        seen, opened, place, held, _, _ = state
        if held:
            best = [5] if opened == self.goal or (held == 2 and opened < 3) else [self.goal]
        elif opened == place:
            best = [3]
        else:
            best = [d for d in range(3) if d != self.goal and not seen >> d & 1] or [0, 1, 2]
        chance = (1 / 9, 1 / 9, 1 / 9, 1 / 18, 5 / 18, 1 / 3)
        wise = [(1 - self.noise) / len(best) if a in best else 0.0 for a in range(6)]
        return None, tuple(w + self.noise * c for w, c in zip(wise, chance, strict=True))

    def refused(self, state: State, action: int) -> bool:
        """Whether the action is answered with an error."""
        _, opened, place, held, _, _ = state
        if action < 3:
            return False
        if action == 3:
            return held > 0 or opened != place
        return opened == 3 or (held > 0) == (action == 4)

    def after(self, state: State, action: int) -> State:
        """Return the state that an action leads to."""
        seen, opened, place, held, calls, steps = state
        if self.refused(state, action):
            return (seen, opened, place, held, calls, steps + 1)
        if action < 3:
            return (seen | 1 << action, action, place, held, calls + 1, steps + 1)
        if action < 5:
            return (seen, opened, place, 1 if action == 3 else 2, calls + 1, steps + 1)
        done = held == 1 and opened == self.goal  # more calls than there are mark the success
        return (seen, opened, opened if held == 1 else place, 0, DONE if done else calls + 1, steps + 1)

    def over(self, state: State) -> bool:
        """Whether the episode is over."""
        return state[4] >= self.calls

    def score(self, state: State) -> float:
        """The end's score."""
        return float(state[4] == DONE)

    def _value(self, state: State) -> float:
        """V^π, exactly; an episode that used up its steps scores 0."""
        if self.over(state):
            return self.score(state)
        if state[5] == self.max_steps:
            return 0.0
        return sum(p * self.value(self.after(state, a)) for a, p in enumerate(self.moves(state)[1]))


class ChoicesWorld:
    """The task as the search sees it; see `TaskEnvironment`."""

    one_thread = False

    def __init__(self, task: Choices | Errand) -> None:
        self._task = task

    def open(self) -> Opening:
        return Opening("start", "", (), _key, self._task.start)

    def execute(self, state: State, action: Action, replay: bool = True) -> Outcome:
        after = self._task.after(state, int(action.text))
        fault = "tool_error" if self._task.refused(state, int(action.text)) else None
        if not self._task.over(after):
            return Outcome("on", "tool", False, fault=fault, state=after)
        score = self._task.score(after)
        return Outcome("over", "tool", True, verdict=Verdict(score, score == 1.0, "choices"), state=after)

    def remember(self, state: State, action: Action, observation: str | None, fingerprint: str | None) -> Any:
        return self._task.after(state, int(action.text))

    def close(self) -> None:
        return None


class ChoicesPolicy:
    """Samples from the task's own probabilities."""

    name, renderer, batch_invariant, max_tokens = "choices", None, True, 0
    identity: dict[str, object] = {}

    def __init__(self, task: Choices | Errand) -> None:
        self._task = task

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Proposals]:
        return [Proposals(tuple(self._draw(r.context, seed, r.temperature) for seed in r.seeds)) for r in requests]

    def _draw(self, context: Context, seed: int, temperature: float | None) -> Action:
        probabilities = self._task.moves(state_of(self._task, context))[1]
        if temperature == 0.0:
            way = max(range(len(probabilities)), key=lambda a: probabilities[a])
        else:
            way = random.Random(seed).choices(range(len(probabilities)), probabilities)[0]
        return Action(str(way), call=ToolCall("go", {"way": way}), logps=(math.log(probabilities[way]),))


def search(task: Choices | Errand, **settings: Any) -> SearchTree:
    """Search one task to its end."""
    options = {"simulations": 64, "max_steps": task.max_steps, **settings}
    one = TreeSearch(
        Task(f"{task.name}-{task.seed}", "train", {}), ChoicesWorld(task), SearchSettings(**options), seed=task.seed
    )
    scheduler = Scheduler(InlineEngine(ChoicesPolicy(task)), EnvPool(0, None))  # type: ignore[arg-type]
    tree = next(iter(scheduler.run([(one, ())]))).tree
    assert tree is not None
    return tree


def state_of(task: Choices | Errand, context: Context) -> State:
    """The state after the choices made so far."""
    state = task.start
    for action in context.actions():
        state = task.after(state, int(action.text))
    return state


def state_after(task: Choices | Errand, edge: Edge) -> State:
    """The state after an edge."""
    return task.after(state_of(task, edge.parent.context), int(edge.actions[0].text))


def _key(action: Action) -> str:
    return action.text
