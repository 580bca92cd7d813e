"""The search of `build_prefs`: tasks in, trees in the run directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offline_agent import catalog
from offline_agent.config import BuildPrefsConfig
from offline_agent.pipelines._command import Session
from offline_agent.pipelines._figures import Figures
from offline_agent.pipelines._parts import Parts
from offline_agent.pipelines._probe import trust_copies
from offline_agent.policies.base import Engine
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
    written = set(run_dir.tree_ids())
    log = run_dir.events()
    logs = _Logs.read(log.read(), written) if run_dir.resumed else _Logs()
    left = [task for task in parts.tasks if task.task_id not in written]
    if not left:
        return
    trust_copies(session, parts.spec, left)
    settings = settings_of(config, len(parts.tasks), parts.policy.max_tokens, parts.spec.deterministic_verifier)
    critic = _critic(config, engine)
    pool = EnvPool(config.limits.workers, config.limits.step_seconds)
    counts = RestoreCounts()
    done = len(written)

    def searches() -> Iterator[tuple[TreeSearch, Sequence[Mapping[str, Any]]]]:
        for task in left:
            world = Restorer(parts.spec, task, config.search.state_cache, counts)
            segment = None if parts.policy.renderer is None else parts.policy.renderer.segment
            one = TreeSearch(
                task, world, settings, config.seed, critic=critic is not None, reward=parts.reward, segment=segment,
                log=log.append,
            )  # fmt: skip
            yield one, logs.records.pop(task.task_id, ())

    def tick(now: RunCounts) -> None:
        rate = now.generated / now.seconds if now.seconds else 0
        session.progress.update(done, simulations=now.simulations, tokens=now.generated, per_second=f"{rate:.0f}")

    scheduler = Scheduler(
        engine, pool, critic, config.search.trees_in_flight, config.search.budget.seconds,
        reset_seconds=config.limits.reset_seconds, tick=tick,
    )  # fmt: skip
    session.progress.start(len(parts.tasks), "searching")
    try:
        for one in scheduler.run(searches()):
            assert one.tree is not None  # finished
            run_dir.write_tree(one.tree_id, tree_to_json(one.tree))
            done += 1
    finally:
        pool.close()
        figures.searched(scheduler.counts, counts, critic)


def _critic(config: BuildPrefsConfig, engine: Engine) -> Critic | None:
    name = config.search.critic
    if name is None:
        return None
    if name == "policy":
        return PolicyCritic(engine)
    critic: Critic = catalog.load("search.critic", name)
    return critic
