"""The mining of `build_prefs`: trees in the run directory in, its tables out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from offline_agent.config import BuildPrefsConfig
from offline_agent.pipelines import _mined, _schemas
from offline_agent.pipelines._figures import Figures
from offline_agent.pipelines._parts import Parts
from offline_agent.pipelines._pipeline import Session
from offline_agent.policies.base import Engine
from offline_agent.preferences.balance import Balance
from offline_agent.preferences.criticality import MinimalPairs
from offline_agent.preferences.export import pair_rows, trajectory_rows
from offline_agent.preferences.filters import RejectionFilter
from offline_agent.preferences.hindsight import Hindsight, evaluation_tasks
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.pairs import StepPairs, TrajectoryPairs
from offline_agent.preferences.refusals import Refusal
from offline_agent.preferences.shelf import PairShelf, Same, Shelf
from offline_agent.records import Trajectory
from offline_agent.search.codec import tree_from_json
from offline_agent.search.rollouts import Rollouts
from offline_agent.search.tree import SearchTree
from offline_agent.store import RunDirectory


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


class _Refused:
    """Writes each refusal to the quarantine at once, and counts it."""

    def __init__(self, run: RunDirectory, figures: Figures) -> None:
        self._run = run
        self._figures = figures

    def append(self, refusal: Refusal) -> None:
        """Take one; see `export.Refusals`."""
        self._run.quarantine(refusal.kind, refusal.name, refusal.reason, **dict(refusal.facts))
        self._figures.refused((refusal,))


def mine(parts: Parts, session: Session[BuildPrefsConfig], engine: Engine, figures: Figures) -> None:
    """Build every table from the trees on disk, in task order: a resumed run writes what an uninterrupted one does.

    Where an earlier session did so from the same trees with the same code, its figures are taken over instead.

    Trees are read one by one. What is not written at once (pairs, until all are known and balanced; filtered
    trajectories, until their table's turn comes) waits in temporary files in the run directory.

    Args:
        parts: Environment, tasks, policy.
        session: The run, with a tree for every task.
        engine: The policy's, for counterfactual roll-outs.
        figures: Takes what was found.
    """
    started = time.perf_counter()
    kept = _mined.known(session.run)
    if kept is None or not figures.take_over(kept):
        _mine(parts, session, engine, figures)
        _mined.keep(session.run, figures.of_trees())
    figures.seconds["judging"] = time.perf_counter() - started


def _mine(parts: Parts, session: Session[BuildPrefsConfig], engine: Engine, figures: Figures) -> None:
    config, run_dir, renderer = session.config, session.run, parts.policy.renderer
    known = parts.policy.identity.get("model_hash")
    model = None if known is None else str(known)
    miner = _miner(parts, config, engine)
    refused = _Refused(run_dir, figures)
    session.progress.start(len(parts.tasks), "building pairs")
    with closing(PairShelf(run_dir.path)) as pairs:
        with closing(Shelf[Trajectory](run_dir.path, "filtered")) as filtered:

            def mined_trajectories() -> Iterator[Mapping[str, Any]]:
                for number, tree in enumerate(_trees(parts, session)):
                    figures.tree(tree)
                    mined = miner.mine(tree)
                    figures.mined(mined)
                    pairs.add(mined.pairs)
                    filtered.add(mined.filtered)
                    for refusal in mined.refusals:
                        refused.append(refusal)
                    yield from trajectory_rows(mined.trajectories, renderer, refused, model)
                    session.progress.update(number + 1, pairs=len(pairs))

            run_dir.write_rows(
                "trajectories", figures.count("trajectories", mined_trajectories()), _schemas.TRAJECTORIES
            )
            miner.close()
            rows = figures.count("filtered", trajectory_rows(filtered, renderer, refused, model))
            run_dir.write_rows("filtered", rows, _schemas.FILTERED)
        balanced = pairs.choose(miner.rules, refused.append)
        rows = figures.count_pairs(pair_rows(balanced, renderer, refused, model))
        run_dir.write_rows("preferences", rows, _schemas.PREFERENCES)


def _trees(parts: Parts, session: Session[BuildPrefsConfig]) -> Iterator[SearchTree]:
    same = Same()
    for task in parts.tasks:
        tree = tree_from_json(session.run.read_tree(task.task_id))
        for node in tree.nodes:
            node.context.tools = same.of(node.context.tools)
        yield tree
