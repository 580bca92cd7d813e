"""Attempts of `evaluate` on Ray workers: the workers play and search, the driver logs.

An item is a task with its attempts that are left: they share prompts, so one worker plays them.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.envs.pool import EnvPool
from offline_agent.evaluation import test_time
from offline_agent.launch.ray import components
from offline_agent.pipelines.stages.copy_check import bound_environments, trust_copies
from offline_agent.pipelines.stages.ray_search import TaskRecords, WorkerSearches
from offline_agent.pipelines.stages.search import search_log, test_time_settings
from offline_agent.policies.base import Policy
from offline_agent.records import Task, Verdict
from offline_agent.rollouts.attempts import Attempt, AttemptRequest, Journal, from_record
from offline_agent.rollouts.episodes import Episodes
from offline_agent.runner.components import Parts
from offline_agent.search.restore import RestoreCounts

if TYPE_CHECKING:
    from offline_agent.launch.ray.pool import WorkerPool
    from offline_agent.launch.ray.worker import ItemFeed, Send
    from offline_agent.pipelines.stages.attempts import EvaluationRun

PLAY, SEARCH = "play", "search"
_PLAYED = ("requests", "prompt_tokens_computed", "prompt_tokens_reused", "generation_seconds", "hung_calls")


@dataclass(frozen=True, slots=True)
class EvaluationExecutorFactory:
    """Makes an `EvaluationExecutor` in a worker.

    Attributes:
        recipe: Recipe of the components; its configuration names the policy that plays.
        label: `candidate` or `against`.
        answered_before: The policy has answered in an earlier session.
    """

    recipe: components.Recipe
    label: str
    answered_before: bool

    def __call__(self) -> EvaluationExecutor:
        """Return it."""
        config, parts, notes = self.recipe.make()
        assert isinstance(config, EvaluateConfig)
        return EvaluationExecutor(config, parts, self.label, self.answered_before, notes)


class EvaluationExecutor:
    """The work of `evaluate` in a worker; see `Executor`.

    Args:
        config: The configuration.
        parts: Environment and policy.
        label: `candidate` or `against`.
        answered_before: See `Episodes`.
        notes: See `Executor`.
    """

    def __init__(
        self, config: EvaluateConfig, parts: Parts, label: str, answered_before: bool, notes: tuple[str, ...] = ()
    ) -> None:
        self.notes = notes
        self._config = config
        self._parts = parts
        self._label = label
        self._engine = parts.policy.engine()
        self._pool = EnvPool(config.limits.workers, config.limits.step_seconds)
        bound_environments(config.limits, parts.spec, parts.tasks)
        self._servers = components.ServerFigures(parts.policy)
        self._answered_before = answered_before
        self._episodes: Episodes | None = None
        self._searches: WorkerSearches | None = None
        self._busy = 0.0
        self._hung = 0

    def work(self, phase: str, feed: ItemFeed, send: Send, elapsed: float) -> None:
        """See `Executor.work`."""
        self._busy, self._hung = self._engine.busy_seconds, self._pool.hung
        if phase == PLAY:
            self._play(feed, send)
        else:
            self._search(feed, send, elapsed)

    def figures(self, last: bool) -> dict[str, Any]:
        """See `Executor.figures`."""
        out: dict[str, Any] = {}
        if self._searches is not None:
            out = self._searches.figures()
        elif self._episodes is not None:
            played = self._episodes
            numbers = (played.requests, played.prefilled, played.cached)
            rest = (self._engine.busy_seconds - self._busy, self._pool.hung - self._hung)
            out = {"played": dict(zip(_PLAYED, (*numbers, *rest), strict=True)), "line": {"requests": played.requests}}
        return {**out, **self._servers.figures(last)}

    def stop(self) -> None:
        """Do nothing: finished attempts are logged, unfinished ones are played again."""

    def _play(self, feed: ItemFeed, send: Send) -> None:
        config, policy = self._config, self._parts.policy
        episodes = self._episodes = Episodes(
            self._parts.spec, self._engine, self._pool, policy=self._label, seed=config.seed,
            max_steps=config.max_steps, temperature=config.policy.temperature, max_tokens=config.policy.max_tokens,
            in_flight=min(config.in_flight, self._parts.spec.census.most), reset_seconds=config.limits.reset_seconds,
            segment=None if policy.renderer is None else policy.renderer.segment, answered_before=self._answered_before,
        )  # fmt: skip
        asks, shown = _FeedAttempts(feed), Journal(lambda record: send(number, "record", record), (), {})
        while feed.wait():
            for attempt in episodes.play(asks):
                number = asks.number[attempt.task.task_id]
                shown.add(attempt)
                shown.attempts.clear()  # the driver has them
                asks.left[number] -= 1
                if not asks.left[number]:
                    send(number, "done", None)

    def _search(self, feed: ItemFeed, send: Send, elapsed: float) -> None:
        settings = test_time_settings(self._config, self._parts)
        self._searches = WorkerSearches(self._parts, self._config, settings, self._engine, self._pool)
        self._searches.work(feed, send, elapsed, lambda tree: _records(test_time.best_branch(tree, self._label)))


class _FeedAttempts:
    """The attempts of the items of a feed; like the feed, it can be iterated again when items arrive.

    Attributes:
        number: Number of the item, by task.
        left: Unfinished attempts, by number of the item.
    """

    def __init__(self, feed: ItemFeed) -> None:
        self._feed = feed
        self._asks: deque[AttemptRequest] = deque()
        self.number: dict[str, int] = {}
        self.left: Counter[int] = Counter()

    def __iter__(self) -> _FeedAttempts:
        return self

    def __next__(self) -> AttemptRequest:
        if not self._asks:
            number, asks = next(self._feed)
            self._asks.extend(asks)
            self.number[asks[0].task.task_id] = number
            self.left[number] = len(asks)
        return self._asks.popleft()


def _records(attempt: Attempt) -> list[Any]:
    """Return the log records of an attempt, its opening first."""
    records: list[Any] = []
    Journal(records.append, (), {}).add(attempt)
    return records


# -- the driver ----------------------------------------------------------------------------------------------------


def play(one: EvaluationRun, label: str, policy: Policy, wanted: Sequence[AttemptRequest]) -> None:
    """Play and search on a cluster what is not logged yet; see `evaluate.run`.

    Args:
        one: The evaluation.
        label: `candidate` or `against`.
        policy: The driver's policy; the workers have their own.
        wanted: All attempts without a tree.
    """
    inputs, config, known = one.inputs, one.session.config, one.journal.attempts
    parts, started = inputs.parts, time.perf_counter()
    asks: dict[str, list[AttemptRequest]] = {}
    for ask in wanted:
        if (label, ask.mode, ask.task.task_id, ask.number) not in known:
            asks.setdefault(ask.task.task_id, []).append(ask)
    left = [] if inputs.settings is None else [
        task for task in parts.tasks if (label, "mcts", task.task_id, 0) not in known
    ]  # fmt: skip
    one.measured[label] = dict.fromkeys(_PLAYED, 0)
    if not asks and not left:
        return
    if left:
        trust_copies(one.session, parts.spec, left)
    if label != "candidate":
        config = config.model_copy(update={"policy": config.other_policy()})
    recipe = components.Recipe.of(config, Parts(parts.spec, parts.tasks, policy, parts.reward))
    factory = EvaluationExecutorFactory(recipe, label, any(key[0] == label for key in known))
    each = max(1, math.ceil(len(wanted) / len(parts.tasks)))
    in_flight = max(config.search.trees_in_flight if left else 1, math.ceil(config.in_flight / each))
    most = max(len(asks), len(left))
    with components.worker_pool(config, factory, most, in_flight, one.session, bool(known)) as pool:
        try:
            _played(one, label, pool, asks)
            one.seconds[f"{label}_playing"] = time.perf_counter() - started
            if left:
                started = time.perf_counter()
                _searched(one, label, pool, left)
                one.seconds[f"{label}_searching"] = time.perf_counter() - started
        finally:
            _count(one, label, pool)


def _played(one: EvaluationRun, label: str, pool: WorkerPool, asks: dict[str, list[AttemptRequest]]) -> None:
    from offline_agent.launch.ray.work_items import WorkItem
    from offline_agent.launch.ray.worker import RECORD

    tasks = {task.task_id: task for task in one.inputs.parts.tasks}
    openings: dict[str, tuple[str, Sequence[Any]]] = {}
    items = (WorkItem(name, some) for name, some in asks.items())
    for item, kind, value in pool.run(PLAY, items, one.tick):
        if kind == RECORD and "attempt" not in value:
            openings[value["name"]] = (value["system"], value["tools"])
        elif kind == RECORD:
            attempt = from_record(value, tasks[item.name], openings)
            one.added(attempt)
            item.payload = [ask for ask in item.payload if (ask.mode, ask.number) != (attempt.mode, attempt.number)]
        elif kind == "lost":
            for ask in item.payload:
                one.added(_given_up(label, ask.mode, ask.task, ask.number, value))


def _searched(one: EvaluationRun, label: str, pool: WorkerPool, left: Sequence[Task]) -> None:
    from offline_agent.launch.ray.work_items import WorkItem
    from offline_agent.launch.ray.worker import DONE, RECORD

    log, logged = search_log(one.session, label, left)
    items = (WorkItem(task.task_id, TaskRecords(task, logged.pop(task.task_id, []))) for task in left)
    for item, kind, value in pool.run(SEARCH, items, one.tick):
        if kind == RECORD:
            log.append(value)
            item.payload.records.append(value)
        elif kind == DONE:
            openings = {record["name"]: (record["system"], record["tools"]) for record in value[:-1]}
            one.added(from_record(value[-1], item.payload.task, openings))
        else:
            one.added(_given_up(label, "mcts", item.payload.task, 0, value))


def _given_up(label: str, mode: str, task: Task, number: int, reason: str) -> Attempt:
    """Return the unscored attempt at a task that killed its workers."""
    verdict = Verdict(None, None, "evaluation", error=reason)
    return Attempt(label, mode, task, number, None, (), verdict, False, True, "fault")


def _count(one: EvaluationRun, label: str, pool: WorkerPool) -> None:
    """Add up the counts of the workers."""
    measured = one.measured[label]
    for part in components.counts(pool, PLAY, "played"):
        for name, value in part.items():
            measured[name] = round(measured[name] + value, 2)
    if components.counts(pool, SEARCH, "run"):
        restored = components.added(RestoreCounts, components.counts(pool, SEARCH, "restored"))
        measured["calls_executed"], measured["calls_replayed"] = restored.executed, restored.replayed
        measured["states_copied"] = restored.copies
    measured["ray"] = {"workers": components.workers(pool, [PLAY, SEARCH]), "tasks_handed_again": pool.handed_again}
    one.servers[label] = components.counts(pool, SEARCH, "servers") or components.counts(pool, PLAY, "servers")
