"""The attempts of `evaluate` spread over Ray workers: they play and search, the driver logs.

A job is a task with the attempts at it that are left, so that they share prompts in one worker.
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
from offline_agent.pipelines.stages.copy_check import trust_copies
from offline_agent.pipelines.stages.ray_search import Forest, Wanted
from offline_agent.pipelines.stages.searches import search_log, test_time_settings
from offline_agent.policies.base import Policy
from offline_agent.records import Task, Verdict
from offline_agent.rollouts.attempts import Attempt, Journal, from_record
from offline_agent.rollouts.episodes import AttemptRequest, Episodes
from offline_agent.runner.components import Parts
from offline_agent.search.restore import RestoreCounts

if TYPE_CHECKING:
    from offline_agent.launch.ray.jobs import Crew, Feed, Send

PLAY, SEARCH = "play", "search"
_PLAYED = ("requests", "prompt_tokens_computed", "prompt_tokens_reused", "generation_seconds", "hung_calls")


@dataclass(frozen=True, slots=True)
class PlayerFactory:
    """Makes a `Player` in a worker.

    Attributes:
        recipe: Its configuration names the policy that plays.
        label: `candidate` or `against`.
        answered_before: The policy has answered in an earlier session.
    """

    recipe: components.Recipe
    label: str
    answered_before: bool

    def __call__(self) -> Player:
        """Return it."""
        config, parts, notes = self.recipe.make()
        assert isinstance(config, EvaluateConfig)
        return Player(config, parts, self.label, self.answered_before, notes)


class Player:
    """What does the work of `evaluate` in a worker; a `cluster.ray.Hand`.

    Args:
        config: The configuration.
        parts: Environment and policy.
        label: `candidate` or `against`.
        answered_before: See `Episodes`.
        notes: See `Hand`.
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
        self._servers = components.Servers(parts.policy)
        self._answered_before = answered_before
        self._episodes: Episodes | None = None
        self._forest: Forest | None = None
        self._busy = 0.0
        self._hung = 0

    def work(self, phase: str, feed: Feed, send: Send, elapsed: float) -> None:
        """See `Hand.work`."""
        self._busy, self._hung = self._engine.busy_seconds, self._pool.hung
        if phase == PLAY:
            self._play(feed, send)
        else:
            self._search(feed, send, elapsed)

    def figures(self, last: bool) -> dict[str, Any]:
        """See `Hand.figures`."""
        out: dict[str, Any] = {}
        if self._forest is not None:
            out = self._forest.figures()
        elif self._episodes is not None:
            played = self._episodes
            numbers = (played.requests, played.prefilled, played.cached)
            rest = (self._engine.busy_seconds - self._busy, self._pool.hung - self._hung)
            out = {"played": dict(zip(_PLAYED, (*numbers, *rest), strict=True)), "line": {"requests": played.requests}}
        return {**out, **self._servers.figures(last)}

    def stop(self) -> None:
        """Do nothing: what is over is logged, what is on its way is played anew."""

    def _play(self, feed: Feed, send: Send) -> None:
        config, policy = self._config, self._parts.policy
        episodes = self._episodes = Episodes(
            self._parts.spec, self._engine, self._pool, policy=self._label, seed=config.seed,
            max_steps=config.max_steps, temperature=config.policy.temperature, max_tokens=config.policy.max_tokens,
            in_flight=config.in_flight, reset_seconds=config.limits.reset_seconds,
            segment=None if policy.renderer is None else policy.renderer.segment, answered_before=self._answered_before,
        )  # fmt: skip
        asks, shown = _Asks(feed), Journal(lambda record: send(number, "record", record), (), {})
        while feed.wait():
            for attempt in episodes.play(asks):
                number = asks.number[attempt.task.task_id]
                shown.add(attempt)
                shown.attempts.clear()  # the driver has them
                asks.left[number] -= 1
                if not asks.left[number]:
                    send(number, "done", None)

    def _search(self, feed: Feed, send: Send, elapsed: float) -> None:
        settings = test_time_settings(self._config, self._parts)
        self._forest = Forest(self._parts, self._config, settings, self._engine, self._pool)
        self._forest.work(feed, send, elapsed, lambda tree: _records(test_time.best_branch(tree, self._label)))


class _Asks:
    """The attempts of the jobs of a feed; asked again after it had none, it may have more.

    Attributes:
        number: Of the job that a task's attempts belong to.
        left: How many of a job's attempts are not over.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._asks: deque[AttemptRequest] = deque()
        self.number: dict[str, int] = {}
        self.left: Counter[int] = Counter()

    def __iter__(self) -> _Asks:
        return self

    def __next__(self) -> AttemptRequest:
        if not self._asks:
            number, asks = next(self._feed)
            self._asks.extend(asks)
            self.number[asks[0].task.task_id] = number
            self.left[number] = len(asks)
        return self._asks.popleft()


def _records(attempt: Attempt) -> list[Any]:
    """Return an attempt as `Journal` logs it, what it began with first."""
    records: list[Any] = []
    Journal(records.append, (), {}).add(attempt)
    return records


# -- the driver ----------------------------------------------------------------------------------------------------


def play(one: Any, label: str, policy: Policy, wanted: Sequence[AttemptRequest]) -> None:
    """Play and search in a cluster what is not there yet; see `evaluate.run`.

    Args:
        one: The evaluation under way (`evaluate._Run`).
        label: `candidate` or `against`.
        policy: The driver's; it answers nothing here.
        wanted: All attempts without a tree.
    """
    prepared, config, known = one.prepared, one.session.config, one.journal.attempts
    parts, started = prepared.parts, time.perf_counter()
    asks: dict[str, list[AttemptRequest]] = {}
    for ask in wanted:
        if (label, ask.mode, ask.task.task_id, ask.number) not in known:
            asks.setdefault(ask.task.task_id, []).append(ask)
    left = [] if prepared.settings is None else [
        task for task in parts.tasks if (label, "mcts", task.task_id, 0) not in known
    ]  # fmt: skip
    one.measured[label] = dict.fromkeys(_PLAYED, 0)
    if not asks and not left:
        return
    if left:
        trust_copies(one.session, parts.spec, left)
    if label != "candidate":
        config = config.model_copy(update={"policy": config.policy.model_copy(update={"model": config.against.model})})
    recipe = components.Recipe.of(config, Parts(parts.spec, parts.tasks, policy, parts.reward))
    factory = PlayerFactory(recipe, label, any(key[0] == label for key in known))
    each = max(1, math.ceil(len(wanted) / len(parts.tasks)))
    in_flight = max(config.search.trees_in_flight if left else 1, math.ceil(config.in_flight / each))
    with components.crew(config, factory, max(len(asks), len(left)), in_flight, one.session, bool(known)) as crew:
        try:
            _played(one, label, crew, asks)
            one.seconds[f"{label}_playing"] = time.perf_counter() - started
            if left:
                started = time.perf_counter()
                _searched(one, label, crew, left)
                one.seconds[f"{label}_searching"] = time.perf_counter() - started
        finally:
            _count(one, label, crew)


def _played(one: Any, label: str, crew: Crew, asks: dict[str, list[AttemptRequest]]) -> None:
    from offline_agent.launch.ray.jobs import RECORD, Job

    tasks = {task.task_id: task for task in one.prepared.parts.tasks}
    openings: dict[str, tuple[str, Sequence[Any]]] = {}
    jobs = (Job(name, some) for name, some in asks.items())
    for job, kind, value in crew.run(PLAY, jobs, one.tick):
        if kind == RECORD and "attempt" not in value:
            openings[value["name"]] = (value["system"], value["tools"])
        elif kind == RECORD:
            attempt = from_record(value, tasks[job.name], openings)
            one.added(attempt)
            job.payload = [ask for ask in job.payload if (ask.mode, ask.number) != (attempt.mode, attempt.number)]
        elif kind == "lost":
            for ask in job.payload:
                one.added(_given_up(label, ask.mode, ask.task, ask.number, value))


def _searched(one: Any, label: str, crew: Crew, left: Sequence[Task]) -> None:
    from offline_agent.launch.ray.jobs import DONE, RECORD, Job

    log, logged = search_log(one.session, label, left)
    jobs = (Job(task.task_id, Wanted(task, logged.pop(task.task_id, []))) for task in left)
    for job, kind, value in crew.run(SEARCH, jobs, one.tick):
        if kind == RECORD:
            log.append(value)
            job.payload.records.append(value)
        elif kind == DONE:
            openings = {record["name"]: (record["system"], record["tools"]) for record in value[:-1]}
            one.added(from_record(value[-1], job.payload.task, openings))
        else:
            one.added(_given_up(label, "mcts", job.payload.task, 0, value))


def _given_up(label: str, mode: str, task: Task, number: int, reason: str) -> Attempt:
    """Return the unscored attempt at a task that workers died on."""
    verdict = Verdict(None, None, "evaluation", error=reason)
    return Attempt(label, mode, task, number, None, (), verdict, False, True, "fault")


def _count(one: Any, label: str, crew: Crew) -> None:
    """Add up what the workers counted."""
    measured = one.measured[label]
    for part in components.counts(crew, PLAY, "played"):
        for name, value in part.items():
            measured[name] = round(measured[name] + value, 2)
    if components.counts(crew, SEARCH, "run"):
        restored = components.added(RestoreCounts, components.counts(crew, SEARCH, "restored"))
        measured["calls_executed"], measured["calls_replayed"] = restored.executed, restored.replayed
        measured["states_copied"] = restored.copies
    measured["ray"] = {"workers": components.workers(crew, [PLAY, SEARCH]), "tasks_handed_again": crew.handed_again}
    one.servers[label] = components.counts(crew, SEARCH, "servers") or components.counts(crew, PLAY, "servers")
