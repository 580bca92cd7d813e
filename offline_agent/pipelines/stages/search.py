"""Searches of `build_prefs` and `evaluate`: their settings, their event logs, and the trees that they write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.checks.registry import Report
from offline_agent.envs.checks.suite import audit_tasks
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import ConfigError, DataError
from offline_agent.launch.shards import Shard, listed
from offline_agent.pictures import FOLDER
from offline_agent.pipelines.stages.copy_check import bound_environments, trust_copies, undoing_changes
from offline_agent.policies.base import Engine
from offline_agent.records import Task
from offline_agent.report.mining import Figures
from offline_agent.runner.components import Config, Parts, own_critic
from offline_agent.runner.next_steps import command, environment_keys
from offline_agent.runner.pipeline import Session
from offline_agent.search.requests import Critic, PolicyCritic, RunCounts
from offline_agent.search.restore import RestoreCounts, Restorer
from offline_agent.search.scheduler import Scheduler
from offline_agent.search.serialization import tree_to_json
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree_search import TreeSearch


def search(parts: Parts, session: Session[BuildPrefsConfig], engine: Engine, figures: Figures) -> None:
    """Search every task without a tree, and write its tree.

    Args:
        parts: Environment, tasks, policy and reward.
        session: The run; unfinished trees go on from its event log.
        engine: The engine of the policy.
        figures: Receives the costs of the search.

    Raises:
        PolicyError: The policy failed too often in a row.
        EnvironmentFault: The environment hung too often.
    """
    config, run_dir = session.config, session.run
    written = run_dir.written(task.task_id for task in parts.tasks)
    log = run_dir.events()
    records = by_tree(log.read(without=written), lambda tree: tree not in written) if run_dir.resumed else {}
    left = [task for task in parts.tasks if task.task_id not in written]
    if not left:
        return
    trust_copies(session, parts.spec, parts.tasks)
    bound_environments(config.limits, parts.spec, left)
    audit_first(session, parts.spec, left)
    settings = tree_settings(config, parts)
    session.progress.start(len(parts.tasks), "searching")
    factory = SearchFactory(parts, config, settings, engine)
    pool = EnvPool(config.limits.workers, config.limits.step_seconds)
    done, solved = len(written), 0

    def searches() -> Iterator[tuple[TreeSearch, Sequence[Mapping[str, Any]]]]:
        for task in left:
            yield factory.new(task, log.append), records.pop(task.task_id, ())

    def tick(now: RunCounts) -> None:
        look()
        # of the simulations, not of the trees: many searches are under way at once
        share = min(1.0, now.simulations / (config.search.simulations * len(left)))
        session.progress.update(done, share=share, **progress_figures(now, solved))

    scheduler = factory.scheduler(pool, tick)
    try:
        with undoing_changes(session, parts.spec) as look:
            for one in scheduler.run(searches()):
                assert one.tree is not None  # finished
                run_dir.write_tree(one.tree_id, tree_to_json(one.tree))
                done += 1
                solved += any(end.verdict is not None and bool(end.verdict.success) for end in one.tree.terminals())
    finally:
        pool.close()
        figures.searched(scheduler.counts, factory.counts, parts.spec.census)


def progress_figures(now: RunCounts, solved: int) -> dict[str, object]:
    """Return the figures that progress shows of a search.

    Args:
        now: Its counts.
        solved: Number of tasks searched in this session whose tree has a verified success. No rate: searches that
            succeed may end sooner than others.
    """
    seconds = now.seconds or 1.0
    busy = f"{min(1.0, now.generation_seconds / seconds):.0%}" if now.generated else None
    return {
        "solved": solved,
        "simulations": f"{now.simulations:,}",
        "a_second": f"{now.simulations / seconds:.1f}",
        "tokens": f"{now.generated:,}" if now.generated else None,
        "generator_busy": busy,
    }


# -- settings and logs -------------------------------------------------------------------------------------------------


def tree_settings(config: Config, parts: Parts, **decided: Any) -> SearchSettings:
    """Return the settings of the search of each task; `decided` replaces keys of the section `search`."""
    return SearchSettings.of_tree(
        config.search, len(parts.tasks), temperature=config.policy.temperature, max_tokens=config.policy.max_tokens,
        action_tokens=parts.policy.max_tokens, deterministic_verifier=parts.spec.deterministic_verifier, **decided,
    )  # fmt: skip


def test_time_settings(config: EvaluateConfig, parts: Parts) -> SearchSettings:
    """Return the settings of the search at test time; raises ConfigError where its budget is too small."""
    settings = tree_settings(
        config, parts, algorithm="mcts", simulations=config.test_time.simulations, max_steps=config.max_steps
    )
    if faults := settings.budget_faults(len(parts.tasks)):
        raise ConfigError(faults)
    return settings


class SearchFactory:
    """Makes the searches of a run's tasks.

    Args:
        parts: Environment, policy and reward.
        config: The configuration.
        settings: The settings of the search.
        engine: The engine of the policy.

    Attributes:
        counts: Costs of restoring states, over all trees.
        critic: Scores proposals; None = no critic.
    """

    def __init__(self, parts: Parts, config: Config, settings: SearchSettings, engine: Engine) -> None:
        self.counts = RestoreCounts()
        name = config.search.critic
        self.critic: Critic | None = PolicyCritic(engine) if name == "policy" else own_critic(name)
        self._parts = parts
        self._config = config
        self._settings = settings
        self._engine = engine

    def new(self, task: Task, log: Callable[[dict[str, Any]], None]) -> TreeSearch:
        """Return the search of a task; `log` receives a record for each simulation."""
        parts, config = self._parts, self._config
        segment = None if parts.policy.renderer is None else parts.policy.renderer.segment
        cache = config.search.state_cache
        live = cache or self._settings.leaves_in_flight  # one for each simulation under way
        environment = Restorer(parts.spec, task, live, self.counts, copies=cache > 0)
        return TreeSearch(
            task, environment, self._settings, config.seed,
            critic=self.critic is not None, reward=parts.reward, segment=segment, log=log,
        )  # fmt: skip

    def scheduler(self, pool: EnvPool, tick: Callable[[RunCounts], None]) -> Scheduler:
        """Return the scheduler that runs the searches; see `Scheduler`."""
        config, spec = self._config, self._parts.spec
        trees = spec.census.trees(config.search.trees_in_flight, pool.workers, spec.one_thread)
        return Scheduler(
            self._engine, pool, self.critic, trees, config.search.budget.seconds,
            reset_seconds=config.limits.reset_seconds, critic_seconds=config.limits.critic_seconds, tick=tick,
        )  # fmt: skip


def by_tree(records: Iterable[dict[str, Any]], wanted: Callable[[str], bool]) -> dict[str, list[dict[str, Any]]]:
    """Return the records of the wanted trees, by tree."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if wanted(record["tree"]):
            found.setdefault(record["tree"], []).append(record)
    return found


# -- shards ------------------------------------------------------------------------------------------------------------


def gather_trees(parts: Parts, session: Session[BuildPrefsConfig], shards: Sequence[Shard]) -> None:
    """Link or copy the trees of all shards into the run directory; see `runner.pipeline.Spread.gather`.

    Raises:
        DataError: A shard lacks a tree, or the disk refused; no table is written then.
    """
    from offline_agent.store.files import disk_errors, safe_name, sync_folder

    trees, shown, done = session.run.path / "trees", session.run.path / FOLDER, 0
    with disk_errors(trees, "gathering trees"):
        trees.mkdir(exist_ok=True)
        there = set(os.listdir(trees))
        for shard in shards:
            names = [f"{safe_name(task.task_id)}.json.gz" for task in parts.tasks[shard.start : shard.stop]]
            theirs = set(os.listdir(shard.path / "trees"))
            if missing := [n for n, name in enumerate(names, shard.start) if name not in theirs]:
                raise DataError(
                    f"{shard.path / 'trees'}: the trees of tasks number {listed(missing)} are missing, though the "
                    f"shard is done. Remove {shard.path} and give the command again with its launcher"
                )
            for name in names:
                if name not in there:
                    _place(shard.path / "trees" / name, trees / name)
            for picture in sorted((shard.path / FOLDER).glob("*")):
                shown.mkdir(exist_ok=True)
                if not (shown / picture.name).exists():
                    _place(picture, shown / picture.name)
            done += len(names)
            session.progress.update(done)
        sync_folder(trees)


def _place(source: Path, target: Path) -> None:
    """Link a file, or copy it where the file system has no hard links. Trees are never changed in place."""
    from offline_agent.store.files import write_atomic

    try:
        os.link(source, target)
    except OSError:
        write_atomic(target, source.read_bytes())


_AUDITED, _AUDIT_SECONDS = 3, 2.0
_EVIDENCE = 300  # characters of the evidence of one finding


def audit_first(session: Session[BuildPrefsConfig], spec: EnvSpec, tasks: Sequence[Task]) -> None:
    """Audit an environment before it is searched, say what was found, and note it in the manifest; once for a run.

    A fault does not end the run: whether it matters is the user's to say.

    Args:
        session: The run; `audit=off` leaves the checks out.
        spec: The environment.
        tasks: Tasks of the run; the first few are played.
    """
    if session.config.audit == "off" or "audit" in session.run.manifest:
        return
    if spec.judge is not None and spec.judge.costly:
        session.run.note(audit={"left_out": f"judge={spec.judge.name} asks a model"})
        return
    with undoing_changes(session, spec):
        report = audit_tasks(spec, tasks[:_AUDITED], _AUDIT_SECONDS)
    session.run.note(audit=report.to_json())
    _tell_audit(session, report)


def _tell_audit(session: Session[BuildPrefsConfig], report: Report) -> None:
    name, found = session.run.manifest["command"], [*report.of("fail"), *report.of("warn")]
    for finding in found:
        session.say(f"{name}: audit: {finding.check_id} {finding.status}s: {finding.evidence:.{_EVIDENCE}}")
    if report.of("fail"):
        keys = environment_keys(session.config.resolved()) or ["env=shop"]
        session.say(f"{name}: what is learnt may be worth nothing; audit the environment: {command('audit', keys)}")
    elif not found and report.of("pass"):
        session.say(f"{name}: audit: {len(report.of('pass'))} cheap checks of the environment pass (audit=off: none)")
