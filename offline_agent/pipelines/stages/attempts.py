"""Attempts of `evaluate`: which ones are played, and how this process plays and searches them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from offline_agent import pictures
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import DataError
from offline_agent.evaluation import test_time
from offline_agent.launch.shards import Shard
from offline_agent.pipelines.stages.copy_check import bound_environments, trust_copies
from offline_agent.pipelines.stages.search import SearchFactory, by_tree
from offline_agent.policies.base import Engine, Policy
from offline_agent.records import Task
from offline_agent.rollouts.attempts import Attempt, AttemptRequest, Journal, Key
from offline_agent.rollouts.episodes import Episodes
from offline_agent.runner.components import Parts
from offline_agent.runner.pipeline import Session
from offline_agent.search.settings import SearchSettings


@dataclass(frozen=True)
class EvaluationInputs:
    """The inputs of an evaluation, made from the configuration.

    Attributes:
        parts: Environment, tasks and the candidate.
        other: A policy to compare with, played in this run; None = none.
        settings: Settings of the search at test time; None = no MCTS.
    """

    parts: Parts
    other: Policy | None
    settings: SearchSettings | None

    def players(self) -> list[tuple[str, Policy]]:
        """Return the policies that play, by label."""
        return [("candidate", self.parts.policy), *([("against", self.other)] if self.other is not None else [])]

    def close(self) -> None:
        """Free what the policies and models hold."""
        for _, policy in self.players():
            policy.close()


@dataclass
class EvaluationRun:
    """An evaluation in progress.

    Attributes:
        inputs: Its inputs.
        session: Its session.
        journal: The attempts that are logged.
        seconds: Seconds of each part, by label and part.
        measured: Counts of this session, by label.
    """

    inputs: EvaluationInputs
    session: Session[EvaluateConfig]
    journal: Journal
    seconds: dict[str, float] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)

    def added(self, attempt: Attempt) -> None:
        """Log an attempt and update the progress."""
        self.journal.add(attempt)
        self.tick()

    def figures(self) -> dict[str, Any]:
        """Return seconds and counts for the summary."""
        return {
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "this_session": {"resumed": self.session.run.resumed, **self.measured},
        }

    def tick(self, actions: int | None = None) -> None:
        """Update the progress.

        Args:
            actions: Number of those that the policy was asked for; None = not known.
        """
        done = self.journal.attempts.values()
        # no success rate: successes end sooner than attempts that use up their steps, so it would be too high
        self.session.progress.update(
            len(done), successes=sum(attempt.success is True for attempt in done), actions=actions
        )


def asks(config: EvaluateConfig, tasks: Sequence[Task]) -> list[AttemptRequest]:
    """Return every attempt that is played without a tree, by task: the attempts at a task share prompts."""
    samples = config.test_time.simulations if config.test_time.algorithm == "best_of_n" else 0
    out = []
    for task in tasks:
        if config.greedy:
            out.append(AttemptRequest(task, "greedy", 0))
        for number in range(max(config.attempts, samples)):
            out.append(AttemptRequest(task, "sampled" if number < config.attempts else test_time.EXTRA, number))
    return out


def play(one: EvaluationRun, label: str, policy: Policy, engine: Engine, pool: EnvPool) -> None:
    """Play every attempt that is not logged yet."""
    config, done, started = one.session.config, one.journal.attempts, time.perf_counter()
    wanted = asks(config, one.inputs.parts.tasks)
    left = [ask for ask in wanted if (label, ask.mode, ask.task.task_id, ask.number) not in done]
    spec = one.inputs.parts.spec
    bound_environments(config.limits, spec, one.inputs.parts.tasks)
    episodes = Episodes(
        spec, engine, pool, policy=label, seed=config.seed, max_steps=config.max_steps,
        temperature=config.policy.temperature, max_tokens=config.policy.max_tokens,
        in_flight=min(config.in_flight, spec.census.most),
        reset_seconds=config.limits.reset_seconds, segment=None if policy.renderer is None else policy.renderer.segment,
        answered_before=len(left) < len(wanted), tick=lambda: one.tick(episodes.requests),
    )  # fmt: skip
    for attempt in episodes.play(left):
        one.added(attempt)
    one.seconds[f"{label}_playing"] = time.perf_counter() - started
    one.measured[label] = {
        "requests": episodes.requests,
        "prompt_tokens_computed": episodes.prefilled,
        "prompt_tokens_reused": episodes.cached,
        "generation_seconds": round(engine.busy_seconds, 2),
        "hung_calls": pool.hung,
        "environments_open": spec.census.peak,
        "environments_limit": spec.census.most,
    }


def search(
    one: EvaluationRun, label: str, policy: Policy, engine: Engine, pool: EnvPool, settings: SearchSettings
) -> None:
    """Search every task that has no searched attempt yet."""
    config, parts, started = one.session.config, one.inputs.parts, time.perf_counter()
    left = [task for task in parts.tasks if (label, "mcts", task.task_id, 0) not in one.journal.attempts]
    if not left:
        return
    trust_copies(one.session, parts.spec, left)
    log = one.session.run.events("search" if label == "candidate" else f"search-{label}")
    names = {task.task_id for task in left}
    logged = by_tree(log.read(), names.__contains__) if one.session.run.resumed else {}
    factory = SearchFactory(replace(parts, policy=policy), config, settings, engine)
    scheduler = factory.scheduler(pool, lambda _: one.tick())
    for search in scheduler.run((factory.new(task, log.append), logged.get(task.task_id, ())) for task in left):
        assert search.tree is not None  # finished
        one.added(test_time.best_branch(search.tree, label))
    one.seconds[f"{label}_searching"] = time.perf_counter() - started
    one.measured[label] |= {
        "calls_executed": factory.counts.executed,
        "calls_replayed": factory.counts.replayed,
        "states_copied": factory.counts.copies,
    }


# -- shards ------------------------------------------------------------------------------------------------------------


def gather_attempts(session: Session[EvaluateConfig], shards: Sequence[Shard], wanted: Iterable[Key]) -> None:
    """Append the attempts of all shards to the event log of the run; see `runner.pipeline.Spread.gather`.

    Args:
        session: The run.
        shards: Its shards.
        wanted: Keys of all attempts that the shards must hold.

    Raises:
        DataError: An attempt is missing, a log is broken, or the disk is full.
    """
    from offline_agent.store.events import EventLog

    log = session.run.events()
    there = {_record_key(record) for record in log.read()}
    for shard in shards:
        pictures.look_in(shard.path / pictures.FOLDER)
        for record in EventLog(shard.path / "events" / "0000.jsonl").read():
            if _record_key(record) not in there:
                log.append(record)
                there.add(_record_key(record))
        session.progress.update(shard.stop)
    missing = [key for key in wanted if key not in there]
    if missing:
        raise DataError(
            f"{len(missing)} attempts are in no shard, e.g. {'/'.join(map(str, missing[0]))}, though all are done. "
            f"Remove {shards[0].path.parent} and give the command again with its launcher"
        )


def _record_key(record: Mapping[str, Any]) -> Any:
    """Return the key of an attempt's record, or the name of an opening's."""
    return tuple(record["attempt"]) if "attempt" in record else record["name"]
