"""The search of `build_prefs`: tasks in, trees in the run directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.envs.pool import EnvPool
from offline_agent.pipelines.stages.copy_check import trust_copies, undoing_changes
from offline_agent.pipelines.stages.searches import Searches, settings_of
from offline_agent.policies.base import Engine
from offline_agent.report.build_prefs import Figures
from offline_agent.runner.components import Parts
from offline_agent.runner.pipeline import Session
from offline_agent.search.requests import RunCounts
from offline_agent.search.serialization import tree_to_json
from offline_agent.search.tree_search import TreeSearch


@dataclass
class _Logs:
    """What the event log knows of trees that are not written yet."""

    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def read(cls, events: Iterator[dict[str, Any]], written: set[str]) -> _Logs:
        logs = cls()
        for record in events:
            if record["tree"] not in written:
                logs.records.setdefault(record["tree"], []).append(record)
        return logs


def search(parts: Parts, session: Session[BuildPrefsConfig], engine: Engine, figures: Figures) -> None:
    """Search every task that has no tree yet and write its tree.

    Args:
        parts: Environment, tasks, policy, reward.
        session: The run; what its event log knows of unfinished trees is taken up.
        engine: The policy's.
        figures: Takes what the search cost.

    Raises:
        PolicyError: The policy failed too often in a row.
        EnvironmentFault: The environment hung too often.
    """
    config, run_dir = session.config, session.run
    written = run_dir.written(task.task_id for task in parts.tasks)
    log = run_dir.events()
    logs = _Logs.read(log.read(without=written), written) if run_dir.resumed else _Logs()
    left = [task for task in parts.tasks if task.task_id not in written]
    if not left:
        return
    trust_copies(session, parts.spec, parts.tasks)
    settings = settings_of(config, len(parts.tasks), parts.policy.max_tokens, parts.spec.deterministic_verifier)
    session.progress.start(len(parts.tasks), "searching")
    if config.launcher == "ray":
        from offline_agent.pipelines.stages import ray_search

        ray_search.search(parts, session, engine, figures, left, logs.records)
        return
    made = Searches(parts, config, settings, engine)
    pool = EnvPool(config.limits.workers, config.limits.step_seconds)
    done = len(written)

    def searches() -> Iterator[tuple[TreeSearch, Sequence[Mapping[str, Any]]]]:
        for task in left:
            yield made.new(task, log.append), logs.records.pop(task.task_id, ())

    def tick(now: RunCounts) -> None:
        look()
        rate = now.generated / now.seconds if now.seconds else 0
        session.progress.update(done, simulations=now.simulations, tokens=now.generated, per_second=f"{rate:.0f}")

    scheduler = made.scheduler(pool, config.search.budget.seconds, tick)
    try:
        with undoing_changes(session, parts.spec) as look:
            for one in scheduler.run(searches()):
                assert one.tree is not None  # finished
                run_dir.write_tree(one.tree_id, tree_to_json(one.tree))
                done += 1
    finally:
        pool.close()
        figures.searched(scheduler.counts, made.counts, made.critic)
