"""Search of `build_prefs` on Ray workers: the workers search, the driver logs records and writes trees.

A worker that takes over a task gets the driver's records of it, and resumes after the last one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.envs.pool import EnvPool
from offline_agent.launch.ray import components
from offline_agent.pipelines.stages.copy_check import bound_environments
from offline_agent.pipelines.stages.search import SearchFactory, critic_of, progress_figures, share_of, tree_settings
from offline_agent.policies.base import Engine
from offline_agent.records import Task
from offline_agent.report.mining import Figures
from offline_agent.runner.components import Config, Parts
from offline_agent.runner.pipeline import Session
from offline_agent.search.critic import PolicyCritic
from offline_agent.search.requests import RunCounts
from offline_agent.search.restore import RestoreCounts, Restorer
from offline_agent.search.scheduler import Scheduler
from offline_agent.search.serialization import tree_to_json
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import SearchTree
from offline_agent.search.tree_search import TreeSearch

if TYPE_CHECKING:
    from offline_agent.launch.ray.pool import WorkerPool
    from offline_agent.launch.ray.worker import HandedItem, ItemFeed, Send

SEARCH = "search"
_TICK = 0.5


class TaskRecords(NamedTuple):
    """A task to search, with its log records so far."""

    task: Task
    records: list[dict[str, Any]]


class WorkerSearches:
    """Searches tasks in a worker, many at once.

    Args:
        parts: Components of the worker.
        config: The configuration.
        settings: The settings of the search.
        engine: The engine of the policy.
        pool: Steps environments.
    """

    def __init__(
        self, parts: Parts, config: Config, settings: SearchSettings, engine: Engine, pool: EnvPool
    ) -> None:
        self._factory = SearchFactory(parts, config, settings, engine)
        self._pool = pool
        self._limit = config.search.budget.seconds
        self._scheduler: Scheduler | None = None

    def work(self, feed: ItemFeed, send: Send, elapsed: float, result: Any) -> None:
        """Search until the feed is closed; see `Executor.work`.

        Args:
            feed: Items whose payload is `TaskRecords`.
            send: Receives records and results.
            elapsed: Seconds of the run's budget that are spent.
            result: Makes the result of a finished tree.
        """
        left = None if self._limit is None else max(1e-9, self._limit - elapsed)
        scheduler = self._scheduler = self._factory.scheduler(self._pool, left)
        numbers: dict[str, int] = {}

        def begin(item: HandedItem) -> tuple[TreeSearch, Sequence[Mapping[str, Any]]]:
            task, records = item.payload
            numbers[task.task_id] = item.number
            return self._factory.new(task, lambda record: send(item.number, "record", record)), records

        while feed.wait():
            for one in scheduler.run(map(begin, feed)):
                assert one.tree is not None  # finished
                send(numbers.pop(one.tree_id), "done", result(one.tree))

    def figures(self) -> dict[str, Any]:
        """Return the counts so far."""
        if self._scheduler is None:
            return {}
        run, critic = asdict(self._scheduler.counts), self._factory.critic
        line = {name: run[name] for name in ("simulations", "requests", "generated", "faults", "seconds")}
        out = {"run": run, "restored": asdict(self._factory.counts), "line": line}
        if isinstance(critic, PolicyCritic):
            out["critic"] = {name: getattr(critic, name) for name in ("asked", "unreadable", "generated")}
        return out


@dataclass(frozen=True, slots=True)
class SearchExecutorFactory:
    """Makes a `SearchExecutor` in a worker."""

    recipe: components.Recipe

    def __call__(self) -> SearchExecutor:
        """Return it."""
        config, parts, notes = self.recipe.make()
        assert isinstance(config, BuildPrefsConfig)
        return SearchExecutor(config, parts, notes)


class SearchExecutor:
    """The work of `build_prefs` in a worker; see `Executor`."""

    def __init__(self, config: BuildPrefsConfig, parts: Parts, notes: tuple[str, ...] = ()) -> None:
        self.notes = notes
        policy, spec = parts.policy, parts.spec
        settings = tree_settings(config, parts)
        pool = EnvPool(config.limits.workers, config.limits.step_seconds)
        bound_environments(config.limits, spec, parts.tasks)
        self._servers = components.ServerFigures(policy)
        self._searches = WorkerSearches(parts, config, settings, policy.engine(), pool)

    def work(self, phase: str, feed: ItemFeed, send: Send, elapsed: float) -> None:
        """See `Executor.work`; results are trees as JSON."""
        self._searches.work(feed, send, elapsed, tree_to_json)

    def figures(self, last: bool) -> dict[str, Any]:
        """See `Executor.figures`."""
        return {**self._searches.figures(), **self._servers.figures(last)}

    def stop(self) -> None:
        """Do nothing: all finished simulations are in the records."""


def search(
    parts: Parts,
    session: Session[BuildPrefsConfig],
    engine: Engine,
    figures: Figures,
    left: Sequence[Task],
    records: dict[str, list[dict[str, Any]]],
) -> None:
    """Search tasks on a cluster and write their trees; see `stages.search.search`.

    Args:
        parts: Components of the driver.
        session: The run.
        engine: The driver's engine; the workers have their own.
        figures: Receives the costs of the search.
        left: Tasks without a tree.
        records: Records of the event log, by tree.
    """
    from offline_agent.launch.ray.work_items import WorkItem
    from offline_agent.launch.ray.worker import DONE, RECORD

    config, run_dir, log = session.config, session.run, session.run.events()
    settings = tree_settings(config, parts)
    before = len(parts.tasks) - len(left)
    items = (WorkItem(task.task_id, TaskRecords(task, records.pop(task.task_id, []))) for task in left)
    factory = SearchExecutorFactory(components.Recipe.of(config, parts))
    started = ticked = time.monotonic()
    with components.worker_pool(config, factory, len(left), config.search.trees_in_flight, session, before > 0) as pool:
        done, solved = before, 0
        try:
            for item, kind, value in pool.run(SEARCH, items):
                searched: TaskRecords = item.payload
                if kind == RECORD:
                    log.append(value)
                    searched.records.append(value)  # a worker that takes over resumes here
                elif kind == DONE:
                    run_dir.write_tree(searched.task.task_id, value)
                    solved += any((node.get("verdict") or {}).get("success") for node in value["nodes"])
                else:
                    tree = given_up(parts, settings, config.seed, searched.task, value)
                    run_dir.write_tree(tree.tree_id, tree_to_json(tree))
                done += kind != RECORD
                if time.monotonic() - ticked > _TICK:
                    ticked = time.monotonic()
                    _tick(session, pool, done, solved, len(left))
        finally:
            _count(figures, config, engine, pool, time.monotonic() - started)


def _tick(session: Session[BuildPrefsConfig], pool: WorkerPool, done: int, solved: int, tasks: int) -> None:
    now = components.added(RunCounts, components.counts(pool, SEARCH, "run"))
    session.progress.update(done, share=share_of(now, session.config, tasks), **progress_figures(now, solved))


def given_up(parts: Parts, settings: SearchSettings, seed: int, task: Task, reason: str) -> SearchTree:
    """Return the empty, quarantined tree of a task that killed its workers."""
    one = TreeSearch(task, Restorer(parts.spec, task), settings, seed)
    one.abandon(reason)
    assert one.tree is not None  # abandoned
    return one.tree


def _count(figures: Figures, config: BuildPrefsConfig, engine: Engine, pool: WorkerPool, seconds: float) -> None:
    """Add up the counts of the workers."""
    run = components.added(RunCounts, components.counts(pool, SEARCH, "run"))
    own = run.seconds - run.seconds_waiting  # the search's own work, over all workers
    run.seconds, run.seconds_waiting = seconds, seconds - own
    critic = critic_of(config, engine)
    if isinstance(critic, PolicyCritic):
        for part in components.counts(pool, SEARCH, "critic"):
            for name, value in part.items():
                setattr(critic, name, getattr(critic, name) + value)
    figures.searched(run, components.added(RestoreCounts, components.counts(pool, SEARCH, "restored")), critic)
    figures.servers_elsewhere = {"policy": components.counts(pool, SEARCH, "servers")}
    figures.session["ray"] = {"workers": components.workers(pool, [SEARCH]), "tasks_handed_again": pool.handed_again}
