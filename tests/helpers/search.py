"""A small environment with a known optimum and a seeded policy, for tests of the search."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.policies.base import Engine, Proposals, ProposeRequest
from offline_agent.policies.engines import InlineEngine
from offline_agent.records import Action, Context, Task, ToolCall
from offline_agent.search.restore import RestoreCounts, Restorer
from offline_agent.search.scheduler import Scheduler
from offline_agent.search.serialization import tree_to_json
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree_search import TreeSearch
from tests.helpers.thread_engine import ThreadEngine


class Paths:
    """Walk three digits' worth of doors; the score is the share of doors that match the code."""

    calls: list[str] = []

    @classmethod
    def tasks(cls, split: str) -> Iterable[dict[str, Any]]:
        """Yield codes."""
        start = {"train": 0, "validation": 100, "test": 200}[split]
        for i in range(20):
            yield {"code": f"{(start + i) * 7 % 343:03d}"}

    def reset(self, code: str) -> str:
        """Start before the first door."""
        self.code, self.path, self.terminated = code, "", False
        return f"The code is {code}."

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which door, 0 to 9.
        """
        if not 0 <= number <= 9:
            raise ValueError(f"there is no door {number}; doors are 0 to 9")
        self.calls.append(f"{self.code}:{self.path}{number}")
        self.path += str(number)
        self.terminated = len(self.path) == 3
        return f"Behind you: {self.path}."

    def get_reward(self) -> float:
        """Return the share of doors that match."""
        return sum(a == b for a, b in zip(self.path, self.code, strict=False)) / 3

    @property
    def fingerprint(self) -> str:
        """The path so far."""
        return self.path


class Guess:
    """Draws doors with a bias to the code's digits; words its thought differently in every sample."""

    name, renderer, batch_invariant, max_tokens = "guess", None, True, 8
    identity: dict[str, object] = {}

    def __init__(self, skill: float = 0.3, jitter: float = 0.0, thoughts: bool = True, doors: int = 4) -> None:
        self.skill, self.jitter, self.thoughts, self.doors = skill, jitter, thoughts, doors
        self.noise = random.Random()

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Any]:
        """Answer each request; sleeps a random while where there is jitter."""
        if self.jitter:
            time.sleep(self.noise.random() * self.jitter)
        return [Proposals(tuple(self.act(r.context, s, r.temperature) for s in r.seeds)) for r in requests]

    def act(self, context: Context, seed: int, temperature: float | None) -> Action:
        """Return one action."""
        rng = random.Random(seed)
        code = str(context.task.args["code"])
        right = int(code[min(context.depth, 2)])
        if temperature == 0:
            number = (right + 1) % 10
        elif rng.random() < self.skill:
            number = right
        else:
            number = rng.randrange(self.doors)
        thought = f"thought {rng.randrange(3)}" if self.thoughts else ""
        ids = (number, rng.randrange(50), context.depth)
        logps = tuple(-rng.random() for _ in ids)
        text = f"{thought} door {number}"
        return Action(text, thought, ToolCall("door", {"number": number}), token_ids=ids, logps=logps)

    def engine(self) -> Engine:
        """Return an engine."""
        return ThreadEngine(self, workers=3, max_batch=3) if self.jitter else InlineEngine(self)


def tasks(spec: EnvSpec, n: int, split: str = "train") -> list[Task]:
    """Return the first n tasks."""
    return [task for task, _ in zip(spec.tasks(split), range(n), strict=False)]


class Run:
    """A finished search over some tasks."""

    def __init__(self) -> None:
        self.trees: dict[str, str] = {}
        self.searches: dict[str, TreeSearch] = {}
        self.logs: dict[str, list[dict[str, Any]]] = {}
        self.counts = RestoreCounts()
        self.scheduler: Scheduler | None = None


def search(
    spec: EnvSpec,
    policy: Any,
    settings: SearchSettings,
    some: Sequence[Task],
    *,
    workers: int = 0,
    time_limit: float | None = 20.0,
    live_states: int = 256,
    records: Mapping[str, Sequence[dict[str, Any]]] | None = None,
    logs: dict[str, list[dict[str, Any]]] | None = None,
    seed: int = 5,
    **options: Any,
) -> Run:
    """Search the tasks to the end and return what came out; `logs` is filled even where the search fails."""
    run, logged = Run(), {} if records is None else records
    run.logs = run.logs if logs is None else logs
    pool = EnvPool(workers, time_limit if workers else None)
    engine = policy.engine()
    critic = options.pop("critic", None)
    run.scheduler = Scheduler(engine, pool, critic=critic, **options)

    def searches() -> Iterable[tuple[TreeSearch, Sequence[dict[str, Any]]]]:
        for task in some:
            log = run.logs[task.task_id] = list(logged.get(task.task_id, ()))

            def keep(record: dict[str, Any], log: list[dict[str, Any]] = log) -> None:
                log.append(json.loads(json.dumps(record)))

            world = Restorer(spec, task, live_states, run.counts)
            one = TreeSearch(task, world, settings, seed, log=keep, critic=critic is not None)
            yield one, list(log)

    for one in run.scheduler.run(searches()):
        assert one.tree is not None
        run.searches[one.tree_id] = one
        run.trees[one.tree_id] = json.dumps(tree_to_json(one.tree), sort_keys=True)
    engine.close()
    pool.close()
    return run
