"""The search of `build_prefs`: tasks in, trees in the run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offline_agent import catalog
from offline_agent.config import BuildPrefsConfig
from offline_agent.pipelines._command import Session
from offline_agent.pipelines._figures import Figures
from offline_agent.pipelines._parts import Config, Parts
from offline_agent.pipelines._probe import trust_copies
from offline_agent.policies.base import Engine
from offline_agent.records import Task
from offline_agent.search.codec import tree_to_json
from offline_agent.search.critic import PolicyCritic
from offline_agent.search.mcts import SearchSettings, TreeSearch
from offline_agent.search.restore import RestoreCounts, Restorer
from offline_agent.search.scheduler import Critic, EnvPool, RunCounts, Scheduler


def settings_of(
    config: BuildPrefsConfig, tasks: int, action_tokens: int, deterministic_verifier: bool = True
) -> SearchSettings:
    """Return the search's settings; budgets of the run are divided evenly among its tasks, so trees stay independent.

    Args:
        config: The configuration.
        tasks: Number of tasks.
        action_tokens: The most tokens of one action.
        deterministic_verifier: The environment's.
    """
    search, budget = config.search, config.search.budget
    same = {name: getattr(search, name) for name in SearchSettings.__slots__ if hasattr(search, name)}
    return SearchSettings(
        **same,
        temperature=config.policy.temperature,
        max_tokens=config.policy.max_tokens,
        budget_tokens=None if budget.tokens is None else budget.tokens // tasks,
        budget_prefilled=None if budget.prefilled is None else budget.prefilled // tasks,
        budget_tool_calls=None if budget.tool_calls is None else budget.tool_calls // tasks,
        action_tokens=action_tokens,
        deterministic_verifier=deterministic_verifier,
    )


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
    trust_copies(session, parts.spec, left)
    settings = settings_of(config, len(parts.tasks), parts.policy.max_tokens, parts.spec.deterministic_verifier)
    session.progress.start(len(parts.tasks), "searching")
    if config.launcher == "ray":
        from offline_agent.pipelines import _ray_search

        _ray_search.search(parts, session, engine, figures, left, logs.records)
        return
    made = Searches(parts, config, settings, engine)
    pool = EnvPool(config.limits.workers, config.limits.step_seconds)
    done = len(written)

    def searches() -> Iterator[tuple[TreeSearch, Sequence[Mapping[str, Any]]]]:
        for task in left:
            yield made.new(task, log.append), logs.records.pop(task.task_id, ())

    def tick(now: RunCounts) -> None:
        rate = now.generated / now.seconds if now.seconds else 0
        session.progress.update(done, simulations=now.simulations, tokens=now.generated, per_second=f"{rate:.0f}")

    scheduler = made.scheduler(pool, config.search.budget.seconds, tick)
    try:
        for one in scheduler.run(searches()):
            assert one.tree is not None  # finished
            run_dir.write_tree(one.tree_id, tree_to_json(one.tree))
            done += 1
    finally:
        pool.close()
        figures.searched(scheduler.counts, made.counts, made.critic)


class Searches:
    """Makes the search of any task of a run.

    Args:
        parts: Environment, policy, reward.
        config: Of `build_prefs` or `evaluate`.
        settings: How to search.
        engine: The policy's.

    Attributes:
        counts: What restoring states cost, over all trees.
        critic: Scores proposals; None = none does.
    """

    def __init__(self, parts: Parts, config: Config, settings: SearchSettings, engine: Engine) -> None:
        self.counts = RestoreCounts()
        self.critic = critic_of(config, engine)
        self._parts = parts
        self._config = config
        self._settings = settings
        self._engine = engine

    def new(self, task: Task, log: Callable[[dict[str, Any]], None]) -> TreeSearch:
        """Return a task's search; `log` receives a record per simulation."""
        parts, config = self._parts, self._config
        segment = None if parts.policy.renderer is None else parts.policy.renderer.segment
        return TreeSearch(
            task, Restorer(parts.spec, task, config.search.state_cache, self.counts), self._settings, config.seed,
            critic=self.critic is not None, reward=parts.reward, segment=segment, log=log,
        )  # fmt: skip

    def scheduler(
        self, pool: EnvPool, seconds: float | None = None, tick: Callable[[RunCounts], None] | None = None
    ) -> Scheduler:
        """Return what runs the searches; see `Scheduler`."""
        config = self._config
        return Scheduler(
            self._engine, pool, self.critic, config.search.trees_in_flight, seconds,
            reset_seconds=config.limits.reset_seconds, tick=tick,
        )  # fmt: skip


def critic_of(config: Config, engine: Engine) -> Critic | None:
    """Return what scores proposals; None where nothing does."""
    name = config.search.critic
    if name is None:
        return None
    if name == "policy":
        return PolicyCritic(engine)
    critic: Critic = catalog.load("search.critic", name)
    return critic
