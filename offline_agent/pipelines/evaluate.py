"""A policy on held-out tasks: how often it succeeds, how sure that is, and whether it is better than another.

Run `python -m offline_agent.pipelines.evaluate --help` for the keys.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import ConfigError
from offline_agent.evaluation import report, test_time
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages.copy_check import trust_copies
from offline_agent.pipelines.stages.gathering import gather_attempts
from offline_agent.pipelines.stages.searches import critic_of, search_log, test_time_settings
from offline_agent.policies.base import Engine, Policy
from offline_agent.preferences.dataset.export import trajectory_rows
from offline_agent.preferences.refusals import Refusal
from offline_agent.records import Task
from offline_agent.report.earlier_evaluation import Earlier, read_earlier
from offline_agent.report.evaluate import EXTRA, show, summary
from offline_agent.rollouts import attempts as attempt_table
from offline_agent.rollouts.attempts import Attempt, Journal
from offline_agent.rollouts.episodes import Ask, Episodes
from offline_agent.runner.components import Parts, facts_of, free_arguments, make_parts, make_policy, served
from offline_agent.runner.pipeline import Command, Facts, Session, Shard, Spread
from offline_agent.search.restore import RestoreCounts
from offline_agent.search.settings import SearchSettings
from offline_agent.store import schemas

Evaluation = Session[EvaluateConfig]


@dataclass(frozen=True)
class Prepared:
    """What an evaluation needs, made from the configuration.

    Attributes:
        parts: Environment, tasks, the candidate.
        other: The policy it is compared with, played in this run; None without one.
        earlier: The earlier evaluation it is compared with; None without one.
        settings: Of the search at test time; None without MCTS.
    """

    parts: Parts
    other: Policy | None
    earlier: Earlier | None
    settings: SearchSettings | None

    def players(self) -> list[tuple[str, Policy]]:
        """Return the policies that play, by label."""
        return [("candidate", self.parts.policy), *([("against", self.other)] if self.other is not None else [])]


def prepare(config: EvaluateConfig) -> tuple[Prepared, Facts]:
    """Make the parts; see `runner.pipeline.Command.prepare`."""
    faults = [*_conflicts(config), *([] if config.against.run is None else _missing(Path(config.against.run)))]
    parts: Parts | None = None
    try:
        parts = make_parts(config)
    except ConfigError as error:
        faults += error.faults
    if faults or parts is None:
        raise ConfigError(faults)
    other = None
    if config.against.model is not None:
        section = config.policy.model_copy(update={"model": config.against.model})
        try:
            other = make_policy(section, parts.spec)
        except ConfigError as error:
            raise ConfigError([f"against.model: {fault}" for fault in error.faults]) from error
    earlier = None if config.against.run is None else read_earlier(Path(config.against.run), config, parts)
    settings = test_time_settings(config, parts) if config.test_time.algorithm == "mcts" else None
    facts = facts_of(parts)
    if other is not None:
        facts["against"] = dict(other.identity)
        if "model_hash" in other.identity:
            facts["hashes"]["against_model"] = other.identity["model_hash"]
    if earlier is not None:
        facts["hashes"]["against_attempts"] = earlier.hash
    tags = {"environment": parts.spec.name, "policy": parts.policy.name}
    if config.policy.model is not None:
        tags["model"] = config.policy.model
    facts["served"] = served([("policy", parts.policy), *([("against", other)] if other is not None else [])])
    return Prepared(parts, other, earlier, settings), Facts(facts, tags, free_arguments(parts.policy))


def _conflicts(config: EvaluateConfig) -> Iterator[str]:
    """Yield keys of `search` that another key decides, where they are set to something else."""
    for name, key, value in (
        ("max_steps", "max_steps", config.max_steps),
        ("simulations", "test_time.simulations", config.test_time.simulations),
        ("algorithm", "test_time.algorithm", "mcts"),
    ):
        given = getattr(config.search, name)
        if given not in (value, type(config.search).model_fields[name].default):
            yield f"search.{name}: got {given!r}, but here {key} decides it; set {key} and leave search.{name} out"


def _missing(path: Path) -> Iterator[str]:
    if not (path / "manifest.json").is_file():
        yield f"against.run: {path} is no run directory (it has no manifest.json); name one that evaluate wrote"


# -- run ---------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """An evaluation under way."""

    prepared: Prepared
    session: Evaluation
    journal: Journal
    seconds: dict[str, float] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    servers: dict[str, list[Any]] = field(default_factory=dict)

    def added(self, attempt: Attempt) -> None:
        """Log an attempt; say how it goes."""
        self.journal.add(attempt)
        self.tick()

    def figures(self) -> dict[str, Any]:
        """Return what playing took."""
        return {
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "this_session": {"resumed": self.session.run.resumed, **self.measured},
        }

    def tick(self) -> None:
        """Draw the progress."""
        done = self.journal.attempts.values()
        # no rate: successes end sooner than what runs out of steps
        self.session.progress.update(len(done), successes=sum(attempt.success is True for attempt in done))


def run(prepared: Prepared, session: Evaluation) -> Mapping[str, Any]:
    """Play, search, compare, write; see `runner.pipeline.Command.run`."""
    one, parts = _played(prepared, session), prepared.parts
    played = {label: _ordered(one, label) for label, _ in prepared.players()}
    _write(one, played)
    return {
        **summary(session.config, parts, played, one.journal.openings, prepared.other, prepared.earlier, one.servers),
        **one.figures(),
    }


def _played(prepared: Prepared, session: Evaluation) -> _Run:
    """Play what is not played yet."""
    gc.freeze()  # what is loaded by now lives as long as the run: the collector need not walk it again and again
    config, parts = session.config, prepared.parts
    log = session.run.events()
    journal = Journal(log.append, log.read() if session.run.resumed else (), {t.task_id: t for t in parts.tasks})
    one = _Run(prepared, session, journal)
    searched = len(parts.tasks) if prepared.settings is not None else 0
    if config.policy.temperature == 0 and config.attempts > 1:
        session.say("evaluate: policy.temperature=0: the sampled attempts at a task are all the same; use attempts=1")
    players = prepared.players()
    session.progress.start(len(players) * (searched + len(asks(config, parts.tasks))), "attempts")
    try:
        for label, policy in players:
            if config.launcher == "ray":
                from offline_agent.pipelines.stages import ray_evaluate

                ray_evaluate.play(one, label, policy, asks(config, parts.tasks))
                continue
            engine, pool = policy.engine(), EnvPool(config.limits.workers, config.limits.step_seconds)
            try:
                _play(one, label, policy, engine, pool)
                if prepared.settings is not None:
                    _search(one, label, policy, engine, pool, prepared.settings)
            finally:
                engine.close()
                pool.close()
    finally:
        for _, policy in players:
            policy.close()
    return one


def asks(config: EvaluateConfig, tasks: Sequence[Task]) -> list[Ask]:
    """Return every attempt that is played without a tree, task by task, so that one task's attempts share prompts."""
    samples = config.test_time.simulations if config.test_time.algorithm == "best_of_n" else 0
    out = []
    for task in tasks:
        if config.greedy:
            out.append(Ask(task, "greedy", 0))
        for number in range(max(config.attempts, samples)):
            out.append(Ask(task, "sampled" if number < config.attempts else EXTRA, number))
    return out


def _play(one: _Run, label: str, policy: Policy, engine: Engine, pool: EnvPool) -> None:
    config, done, started = one.session.config, one.journal.attempts, time.perf_counter()
    wanted = asks(config, one.prepared.parts.tasks)
    left = [ask for ask in wanted if (label, ask.mode, ask.task.task_id, ask.number) not in done]
    episodes = Episodes(
        one.prepared.parts.spec, engine, pool, policy=label, seed=config.seed, max_steps=config.max_steps,
        temperature=config.policy.temperature, max_tokens=config.policy.max_tokens, in_flight=config.in_flight,
        reset_seconds=config.limits.reset_seconds, segment=None if policy.renderer is None else policy.renderer.segment,
        answered_before=len(left) < len(wanted), tick=one.tick,
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
    }


def _search(one: _Run, label: str, policy: Policy, engine: Engine, pool: EnvPool, settings: SearchSettings) -> None:
    config, parts, started = one.session.config, one.prepared.parts, time.perf_counter()
    left = [task for task in parts.tasks if (label, "mcts", task.task_id, 0) not in one.journal.attempts]
    if not left:
        return
    trust_copies(one.session, parts.spec, left)
    log, logged = search_log(one.session, label, left)
    counts, search = RestoreCounts(), config.search
    for attempt in test_time.search_trees(
        parts.spec, left, engine, pool, settings, policy=label, seed=config.seed, reward=parts.reward,
        critic=critic_of(config, engine), segment=None if policy.renderer is None else policy.renderer.segment,
        trees_in_flight=search.trees_in_flight, state_cache=search.state_cache,
        reset_seconds=config.limits.reset_seconds, critic_seconds=config.limits.critic_seconds,
        seconds=search.budget.seconds, log=log.append, logged=logged,
        counts=counts, tick=lambda _: one.tick(),
    ):  # fmt: skip
        one.added(attempt)
    one.seconds[f"{label}_searching"] = time.perf_counter() - started
    one.measured[label] |= {
        "calls_executed": counts.executed,
        "calls_replayed": counts.replayed,
        "states_copied": counts.copies,
    }


def _ordered(one: _Run, label: str) -> list[Attempt]:
    """Return a policy's attempts in order of mode, task and number; those that best_of_n chose included."""
    config, parts, known = one.session.config, one.prepared.parts, one.journal.attempts
    played = [known[label, ask.mode, ask.task.task_id, ask.number] for ask in asks(config, parts.tasks)]
    modes = report.by_mode(played)
    out = modes.get("sampled", []) + modes.get("greedy", []) + modes.get(EXTRA, [])
    if config.test_time.algorithm == "best_of_n":
        of_task: dict[str, list[Attempt]] = {task.task_id: [] for task in parts.tasks}
        for attempt in played:
            if attempt.mode != "greedy" and attempt.number < config.test_time.simulations:
                of_task[attempt.task.task_id].append(attempt)
        out += [test_time.best_of_n(samples, config.test_time.judge) for samples in of_task.values()]
    if one.prepared.settings is not None:
        out += [known[label, "mcts", task.task_id, 0] for task in parts.tasks]
    return out


def _write(one: _Run, played: Mapping[str, Sequence[Attempt]]) -> None:
    run_dir = one.session.run
    every = (attempt_table.row(attempt) for attempts in played.values() for attempt in attempts)
    run_dir.write_rows("attempts", every, attempt_table.schema())
    for label, policy in one.prepared.players():
        known = policy.identity.get("model_hash")
        refusals: list[Refusal] = []
        done = [a.trajectory() for a in played[label] if a.mode != "best_of_n"]  # whose samples are all there
        kept = [trajectory for trajectory in done if trajectory is not None]
        table = "trajectories" if label == "candidate" else f"trajectories_{label}"
        rows = trajectory_rows(kept, policy.renderer, refusals, None if known is None else str(known))
        run_dir.write_rows(table, rows, schemas.TRAJECTORIES)
        for refusal in refusals:
            run_dir.quarantine(refusal.kind, refusal.name, refusal.reason, **dict(refusal.facts))
        for attempt in played[label]:
            if attempt.success is None:
                run_dir.quarantine("attempt", "/".join(map(str, attempt.key)), str(attempt.verdict.error))


# -- shards ------------------------------------------------------------------------------------------------------


def _share(prepared: Prepared, session: Evaluation) -> Mapping[str, Any]:
    return {"tasks": len(prepared.parts.tasks), **_played(prepared, session).figures()}


def _gather(prepared: Prepared, session: Evaluation, shards: Sequence[Shard]) -> None:
    config, tasks = session.config, prepared.parts.tasks
    keys = [(ask.mode, ask.task.task_id, ask.number) for ask in asks(config, tasks)]
    keys += [("mcts", task.task_id, 0) for task in tasks] if prepared.settings is not None else []
    gather_attempts(session, shards, [(label, *key) for label, _ in prepared.players() for key in keys])


COMMAND: Command[EvaluateConfig, Prepared] = Command(
    name="evaluate",
    config=EvaluateConfig,
    prepare=prepare,
    run=run,
    show=show,
    spread=Spread(tasks=lambda prepared: len(prepared.parts.tasks), share=_share, gather=_gather),
)

if __name__ == "__main__":
    sys.exit(main(COMMAND))
