"""What a pipeline's searches are made of: their settings, the search of a task, what scores proposals, their log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import ConfigError
from offline_agent.policies.base import Engine
from offline_agent.records import Task
from offline_agent.runner.components import Config, Parts, own_critic
from offline_agent.runner.pipeline import Session
from offline_agent.search.critic import PolicyCritic
from offline_agent.search.requests import Critic, RunCounts
from offline_agent.search.restore import RestoreCounts, Restorer
from offline_agent.search.scheduler import Scheduler
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree_search import TreeSearch
from offline_agent.store.events import EventLog


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


def test_time_settings(config: EvaluateConfig, parts: Parts) -> SearchSettings:
    """Return the settings of the search at test time; raises ConfigError where its budget is too small."""
    search, budget, tasks = config.search, config.search.budget, len(parts.tasks)
    given = {name: getattr(search, name) for name in SearchSettings.__slots__ if hasattr(search, name)}
    decided = {"algorithm": "mcts", "simulations": config.test_time.simulations, "max_steps": config.max_steps}
    settings = SearchSettings(
        **{**given, **decided},
        temperature=config.policy.temperature,
        max_tokens=config.policy.max_tokens,
        deterministic_verifier=parts.spec.deterministic_verifier,
        budget_tokens=None if budget.tokens is None else budget.tokens // tasks,
        budget_prefilled=None if budget.prefilled is None else budget.prefilled // tasks,
        budget_tool_calls=None if budget.tool_calls is None else budget.tool_calls // tasks,
        action_tokens=parts.policy.max_tokens,
    )
    if faults := settings.budget_faults(tasks):
        raise ConfigError(faults)
    return settings


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
            reset_seconds=config.limits.reset_seconds, critic_seconds=config.limits.critic_seconds, tick=tick,
        )  # fmt: skip


def critic_of(config: Config, engine: Engine) -> Critic | None:
    """Return what scores proposals; None where nothing does."""
    name = config.search.critic
    return PolicyCritic(engine, config.search.critic_ranking) if name == "policy" else own_critic(name)


def search_log(
    session: Session[EvaluateConfig], label: str, left: Sequence[Task]
) -> tuple[EventLog, dict[str, list[Any]]]:
    """Return the log of a policy's searches, and what it knows of the tasks that are left."""
    log = session.run.events("search" if label == "candidate" else f"search-{label}")
    names = {task.task_id for task in left}
    logged: dict[str, list[Any]] = {}
    for record in log.read() if session.run.resumed else ():
        if record["tree"] in names:
            logged.setdefault(record["tree"], []).append(record)
    return log, logged
