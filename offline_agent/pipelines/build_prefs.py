"""The main job: tasks, searched; trees, mined; preference pairs and filtered trajectories, written.

Run `python -m offline_agent.pipelines.build_prefs --help` for the keys.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offline_agent import catalog
from offline_agent.config import BuildPrefsConfig
from offline_agent.errors import ConfigError
from offline_agent.pipelines import _schemas
from offline_agent.pipelines._command import Command, Facts, Session, main
from offline_agent.pipelines._figures import Figures, show
from offline_agent.pipelines._parts import Parts, facts_of, make_parts
from offline_agent.pipelines._probe import trust_copies
from offline_agent.policies.base import Engine
from offline_agent.preferences.balance import Balance
from offline_agent.preferences.criticality import MinimalPairs
from offline_agent.preferences.export import pair_rows, trajectory_rows
from offline_agent.preferences.filters import RejectionFilter
from offline_agent.preferences.hindsight import Hindsight, evaluation_tasks
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.pairs import StepPairs, TrajectoryPairs
from offline_agent.preferences.refusals import Refusal
from offline_agent.records import PreferencePair
from offline_agent.search.codec import tree_from_json, tree_to_json
from offline_agent.search.critic import PolicyCritic
from offline_agent.search.mcts import SearchSettings, TreeSearch
from offline_agent.search.restore import RestoreCounts, Restorer
from offline_agent.search.rollouts import Rollouts
from offline_agent.search.scheduler import Critic, EnvPool, RunCounts, Scheduler
from offline_agent.search.tree import SearchTree

Build = Session[BuildPrefsConfig]


def prepare(config: BuildPrefsConfig) -> tuple[Parts, Facts]:
    """Make the parts; see `_command.Command.prepare`."""
    settings_of(config, 1, 0)
    parts = make_parts(config)
    faults = settings_of(config, len(parts.tasks), parts.policy.max_tokens).budget_faults(len(parts.tasks))
    if faults:
        raise ConfigError(faults)
    tags = {"environment": parts.spec.name, "policy": parts.policy.name}
    return parts, Facts(facts_of(parts), tags)


def run(parts: Parts, session: Build) -> Mapping[str, Any]:
    """Search, mine, write; see `_command.Command.run`."""
    gc.freeze()  # what is loaded by now lives as long as the run: the collector need not walk it again and again
    figures = Figures(session.run.path, len(parts.tasks), session.run.resumed)
    engine = parts.policy.engine()
    try:
        _search(parts, session, engine, figures)
        _mine(parts, session, engine, figures)
    finally:
        engine.close()
        parts.policy.close()
    return figures.summary(parts, session.config)


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


# -- search ----------------------------------------------------------------------------------------------------


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


def _search(parts: Parts, session: Build, engine: Engine, figures: Figures) -> None:
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


# -- pairs -----------------------------------------------------------------------------------------------------


def _miner(parts: Parts, config: BuildPrefsConfig, engine: Engine) -> Miner:
    pairs, spec = config.pairs, parts.spec
    relabel = pairs.hindsight != "none" and "hindsight" in pairs.kinds
    kinds = [kind for kind in pairs.kinds if kind != "hindsight" or relabel]
    sampled = pairs.criticality in ("counterfactual", "both")
    rollouts = Rollouts(spec, engine, config.seed, config.search.max_steps, config.policy.temperature)
    strategy = "final" if pairs.hindsight == "none" else pairs.hindsight
    return Miner(
        spec,
        steps=StepPairs(
            pairs.min_visits, pairs.min_gap, pairs.confidence, pairs.per_node, value=config.search.value,
            exact_terminals=spec.deterministic_verifier,
        ),
        trajectory_pairs=TrajectoryPairs(pairs.max_extra_steps, certain=spec.deterministic_verifier),
        hindsight=Hindsight(spec, evaluation_tasks(spec), strategy) if relabel else None,
        minimal=MinimalPairs(per_tree=0) if pairs.criticality == "none" and "minimal" not in kinds else MinimalPairs(),
        filtered=RejectionFilter(
            config.filtered.per_task, config.filtered.negatives, origins=config.filtered.origins
        ),
        balance=Balance(pairs.per_task, pairs.per_depth, pairs.length_tolerance),
        kinds=kinds,
        rollout=rollouts if sampled else None,
        rollouts=pairs.counterfactual_rollouts,
        replay_seconds=config.limits.step_seconds,
    )  # fmt: skip


def _mine(parts: Parts, session: Build, engine: Engine, figures: Figures) -> None:
    """Build every table from the trees on disk, in task order: a resumed run writes what an uninterrupted one does."""
    started = time.perf_counter()
    config, run_dir, renderer = session.config, session.run, parts.policy.renderer
    known = parts.policy.identity.get("model_hash")
    model = None if known is None else str(known)
    miner = _miner(parts, config, engine)
    session.progress.start(len(parts.tasks), "building pairs")
    pairs: list[PreferencePair] = []
    refusals: list[Refusal] = []
    kept: list[Any] = []

    def mined_trajectories() -> Iterator[Mapping[str, Any]]:
        for number, tree in enumerate(_trees(parts, session)):
            figures.tree(tree)
            mined = miner.mine(tree)
            figures.mined(mined)
            pairs.extend(mined.pairs)
            kept.extend(mined.filtered)
            refusals.extend(mined.refusals)
            yield from trajectory_rows(mined.trajectories, renderer, refusals, model)
            session.progress.update(number + 1, pairs=len(pairs))

    run_dir.write_rows("trajectories", figures.count("trajectories", mined_trajectories()), _schemas.TRAJECTORIES)
    miner.close()
    rows = figures.count("filtered", trajectory_rows(kept, renderer, refusals, model))
    run_dir.write_rows("filtered", rows, _schemas.FILTERED)
    balanced, dropped = miner.balance(pairs)
    refusals += dropped
    rows = figures.count_pairs(pair_rows(balanced, renderer, refusals, model))
    run_dir.write_rows("preferences", rows, _schemas.PREFERENCES)
    for refusal in refusals:
        run_dir.quarantine(refusal.kind, refusal.name, refusal.reason, **dict(refusal.facts))
    figures.refused(refusals)
    figures.seconds["judging"] = time.perf_counter() - started


def _trees(parts: Parts, session: Build) -> Iterator[SearchTree]:
    for task in parts.tasks:
        yield tree_from_json(session.run.read_tree(task.task_id))


COMMAND: Command[BuildPrefsConfig, Parts] = Command(
    name="build_prefs",
    about="Search tasks with MCTS over tool calls and write preference pairs and filtered trajectories.",
    config=BuildPrefsConfig,
    prepare=prepare,
    run=run,
    show=show,
)

Printer = Callable[[Mapping[str, Any], Path], Any]

if __name__ == "__main__":
    sys.exit(main(COMMAND))
