"""The search of `build_prefs` spread over Ray workers: they search, the driver logs and writes.

A worker that takes a task over is given the records that the driver has of it, and goes on from the last.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.envs.pool import EnvPool
from offline_agent.launch.ray import components
from offline_agent.pipelines.stages.searches import Searches, critic_of, settings_of
from offline_agent.policies.base import Engine
from offline_agent.records import Task
from offline_agent.report.build_prefs import Figures
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
    from offline_agent.launch.ray.jobs import Crew, Feed, Handed, Send

SEARCH = "search"
_TICK = 0.5


class Wanted(NamedTuple):
    """A task to search, with the records of its log so far."""

    task: Task
    records: list[dict[str, Any]]


class Forest:
    """Searches tasks in a worker, many at once, as they are handed to it.

    Args:
        parts: The worker's.
        config: Of `build_prefs` or `evaluate`.
        settings: How to search.
        engine: The policy's.
        pool: Steps environments.
    """

    def __init__(
        self, parts: Parts, config: Config, settings: SearchSettings, engine: Engine, pool: EnvPool
    ) -> None:
        self._made = Searches(parts, config, settings, engine)
        self._pool = pool
        self._limit = config.search.budget.seconds
        self._scheduler: Scheduler | None = None

    def work(self, feed: Feed, send: Send, elapsed: float, result: Any) -> None:
        """Search until the feed ends; see `Hand.work`.

        Args:
            feed: Jobs whose payload is `Wanted`.
            send: Takes records, and results.
            elapsed: Seconds of the run's budget that are gone.
            result: Makes the result of a finished tree.
        """
        left = None if self._limit is None else max(1e-9, self._limit - elapsed)
        scheduler = self._scheduler = self._made.scheduler(self._pool, left)
        numbers: dict[str, int] = {}

        def begin(job: Handed) -> tuple[TreeSearch, Sequence[Mapping[str, Any]]]:
            task, records = job.payload
            numbers[task.task_id] = job.number
            return self._made.new(task, lambda record: send(job.number, "record", record)), records

        while feed.wait():
            for one in scheduler.run(map(begin, feed)):
                assert one.tree is not None  # finished
                send(numbers.pop(one.tree_id), "done", result(one.tree))

    def figures(self) -> dict[str, Any]:
        """Return what was counted so far."""
        if self._scheduler is None:
            return {}
        run, critic = asdict(self._scheduler.counts), self._made.critic
        line = {name: run[name] for name in ("simulations", "requests", "generated", "faults", "seconds")}
        out = {"run": run, "restored": asdict(self._made.counts), "line": line}
        if isinstance(critic, PolicyCritic):
            out["critic"] = {name: getattr(critic, name) for name in ("asked", "unreadable", "generated")}
        return out


@dataclass(frozen=True, slots=True)
class SearcherFactory:
    """Makes a `Searcher` in a worker."""

    recipe: components.Recipe

    def __call__(self) -> Searcher:
        """Return it."""
        config, parts, notes = self.recipe.make()
        assert isinstance(config, BuildPrefsConfig)
        return Searcher(config, parts, notes)


class Searcher:
    """What does the work of `build_prefs` in a worker; a `cluster.ray.Hand`."""

    def __init__(self, config: BuildPrefsConfig, parts: Parts, notes: tuple[str, ...] = ()) -> None:
        self.notes = notes
        policy, spec = parts.policy, parts.spec
        settings = settings_of(config, len(parts.tasks), policy.max_tokens, spec.deterministic_verifier)
        pool = EnvPool(config.limits.workers, config.limits.step_seconds)
        self._servers = components.Servers(policy)
        self._forest = Forest(parts, config, settings, policy.engine(), pool)

    def work(self, phase: str, feed: Feed, send: Send, elapsed: float) -> None:
        """See `Hand.work`; results are trees as JSON."""
        self._forest.work(feed, send, elapsed, tree_to_json)

    def figures(self, last: bool) -> dict[str, Any]:
        """See `Hand.figures`."""
        return {**self._forest.figures(), **self._servers.figures(last)}

    def stop(self) -> None:
        """Do nothing: what is on its way is in the records."""


def search(
    parts: Parts,
    session: Session[BuildPrefsConfig],
    engine: Engine,
    figures: Figures,
    left: Sequence[Task],
    records: dict[str, list[dict[str, Any]]],
) -> None:
    """Search tasks in a cluster and write their trees; see `_search.search`.

    Args:
        parts: The driver's.
        session: The run.
        engine: The driver's; it answers nothing here.
        figures: Takes what the search cost.
        left: Tasks without a tree.
        records: What the event log knows of them.
    """
    from offline_agent.launch.ray.jobs import DONE, RECORD, Job

    config, run_dir, log = session.config, session.run, session.run.events()
    settings = settings_of(config, len(parts.tasks), parts.policy.max_tokens, parts.spec.deterministic_verifier)
    before = len(parts.tasks) - len(left)
    jobs = (Job(task.task_id, Wanted(task, records.pop(task.task_id, []))) for task in left)
    factory = SearcherFactory(components.Recipe.of(config, parts))
    started = ticked = time.monotonic()
    with components.crew(config, factory, len(left), config.search.trees_in_flight, session, before > 0) as crew:
        done = before
        try:
            for job, kind, value in crew.run(SEARCH, jobs):
                wanted: Wanted = job.payload
                if kind == RECORD:
                    log.append(value)
                    wanted.records.append(value)
                elif kind == DONE:
                    run_dir.write_tree(wanted.task.task_id, value)
                else:
                    tree = given_up(parts, settings, config.seed, wanted, value)
                    run_dir.write_tree(tree.tree_id, tree_to_json(tree))
                done += kind != RECORD
                if time.monotonic() - ticked > _TICK:
                    ticked = time.monotonic()
                    _tick(session, crew, done)
        finally:
            _count(figures, config, engine, crew, time.monotonic() - started)


def _tick(session: Session[BuildPrefsConfig], crew: Crew, done: int) -> None:
    now = components.added(RunCounts, components.counts(crew, SEARCH, "run"))
    rate = now.generated / now.seconds if now.seconds else 0
    session.progress.update(done, simulations=now.simulations, tokens=now.generated, per_second=f"{rate:.0f}")


def given_up(parts: Parts, settings: SearchSettings, seed: int, wanted: Wanted, reason: str) -> SearchTree:
    """Return the empty tree, in quarantine, of a task that workers died on."""
    one = TreeSearch(wanted.task, Restorer(parts.spec, wanted.task), settings, seed)
    one.abandon(reason)
    assert one.tree is not None  # abandoned
    return one.tree


def _count(figures: Figures, config: BuildPrefsConfig, engine: Engine, crew: Crew, seconds: float) -> None:
    """Add up what the workers counted."""
    run = components.added(RunCounts, components.counts(crew, SEARCH, "run"))
    own = run.seconds - run.seconds_waiting  # the search itself, over all workers
    run.seconds, run.seconds_waiting = seconds, seconds - own
    critic = critic_of(config, engine)
    if isinstance(critic, PolicyCritic):
        for part in components.counts(crew, SEARCH, "critic"):
            for name, value in part.items():
                setattr(critic, name, getattr(critic, name) + value)
    figures.searched(run, components.added(RestoreCounts, components.counts(crew, SEARCH, "restored")), critic)
    figures.servers_elsewhere = {"policy": components.counts(crew, SEARCH, "servers")}
    figures.session["ray"] = {"workers": components.workers(crew, [SEARCH]), "tasks_handed_again": crew.handed_again}
