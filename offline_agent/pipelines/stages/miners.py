"""Miners: from one tree to the rows that are written of it, in this process or in several, to the same bytes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import DataError, OfflineAgentError
from offline_agent.policies.base import Engine
from offline_agent.preferences.dataset import packed_rows
from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.dataset.candidates import FactMaker, fact_batch
from offline_agent.preferences.dataset.export import (
    Row,
    accepted,
    ends_of,
    pair_row_or_refusal,
    trajectory_row_or_refusal,
)
from offline_agent.preferences.dataset.filters import RejectionFilter
from offline_agent.preferences.mining import MinedTree, Miner
from offline_agent.preferences.pairs.goals import evaluation_tasks
from offline_agent.preferences.pairs.hindsight import Hindsight
from offline_agent.preferences.pairs.minimal import MinimalPairs, Rollout
from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.preferences.pairs.trajectory import TrajectoryPairs
from offline_agent.preferences.refusals import Refusal
from offline_agent.records import Context
from offline_agent.rendering.columns import has_ids
from offline_agent.rendering.renderer import Renderer
from offline_agent.report.mining import TreeFigures, figures_of
from offline_agent.rollouts.episodes import Episodes, continuations
from offline_agent.runner.components import make_environment
from offline_agent.search.serialization import tree_from_json
from offline_agent.search.tree import SearchTree
from offline_agent.store import schemas
from offline_agent.store.columns import PREFERENCES, stored
from offline_agent.store.run_directory import read_tree, tree_path

if TYPE_CHECKING:
    import pyarrow as pa

_AHEAD = 4  # trees for each process that wait for it, or for those before them
_GRACE = 10.0  # seconds that idle processes may take to end


@dataclass(frozen=True, slots=True)
class TreeRows:
    """The rows, refusals and figures of one tree, ready to be written.

    Attributes:
        figures: Of the tree.
        mining: Counts of the mining: its costs, and the rows left out; they are added up.
        candidates: Facts of its pairs, for balancing; a batch of `candidates.fact_schema`.
        pairs: Their rows, packed, all of weight 1.
        filtered: Rows of the trajectories kept for fine-tuning, packed.
        trajectories: Rows.
        refusals: Refused pairs and trajectories, those without a row included, in that order.
    """

    figures: TreeFigures
    mining: Mapping[str, int]
    candidates: pa.RecordBatch
    pairs: bytes
    filtered: bytes
    trajectories: Sequence[Row]
    refusals: list[Refusal]


@dataclass(frozen=True, slots=True)
class MinerSettings:
    """The settings of mining; can be pickled for another process.

    Attributes:
        config: The command's.
        path: The run directory.
        replay_only: Copies of the environment were found to be no snapshots.
        isolated: Environments run in processes of their own.
        renderer: The policy's.
        model: Hash of the policy's model, where it has one.
    """

    config: BuildPrefsConfig
    path: Path
    replay_only: bool
    isolated: bool
    renderer: Renderer | None
    model: str | None


class TreeMiner:
    """Makes rows of trees, one tree at a time.

    Args:
        settings: Settings of the mining.
        spec: The environment; None = made from the configuration.
        engine: The policy's, for counterfactual roll-outs.
    """

    def __init__(self, settings: MinerSettings, spec: EnvSpec | None = None, engine: Engine | None = None) -> None:
        if spec is None:
            spec = make_environment(settings.config)
            spec.replay_only, spec.isolated = settings.replay_only, settings.isolated
            spec.keep_in(settings.path)
        self._settings = settings
        self._pool: EnvPool | None = None
        rollout = None
        if asks_policy(config := settings.config):
            assert engine is not None  # `pairs.miners` is refused then
            self._pool = EnvPool(config.limits.workers, config.limits.step_seconds)
            rollout = partial(continuations, _episodes(config, spec, engine, self._pool))
        self._miner = miner_of(config, spec, rollout)
        self._tools: deque[Sequence[Mapping[str, Any]]] = deque(maxlen=4)  # those of the latest trees

    def mine(self, task_id: str) -> TreeRows:
        """Return the data mined from a tree of the run. Raises DataError where its file is broken."""
        settings = self._settings
        tree = tree_from_json(read_tree(tree_path(settings.path, task_id)))
        for node in tree.nodes:
            node.context.tools = self._shared(node.context.tools)
        return rows_of(tree, self._miner.mine(tree), settings.renderer, settings.model)

    def map(self, task_ids: Iterable[str]) -> Iterator[TreeRows]:
        """Yield the data of each tree, in order; raises as `mine`."""
        return map(self.mine, task_ids)

    def close(self) -> None:
        """Close the environment that was kept for replays, and end the threads of counterfactual roll-outs."""
        self._miner.close()
        if self._pool is not None:
            self._pool.close()

    def _shared(self, tools: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the equal schemas of an earlier tree: a renderer keeps what it made of schemas by their identity."""
        for known in self._tools:
            if known is tools or (type(known) is type(tools) and known == tools):
                return known
        self._tools.append(tools)
        return tools


def rows_of(tree: SearchTree, mined: MinedTree, renderer: Renderer | None, model: str | None) -> TreeRows:
    """Return what was mined from a tree as rows.

    Args:
        tree: The tree.
        mined: What was mined from it.
        renderer: Gives the token columns; None leaves them null.
        model: Hash of the policy's model, where it has one.
    """
    rows = {
        id(one): trajectory_row_or_refusal(one, _if_known(renderer, one.context), model) for one in mined.trajectories
    }
    # Most of the filtered ones are among the trajectories; refusals of requests are not.
    filtered = [
        rows.get(id(one)) or trajectory_row_or_refusal(one, _if_known(renderer, one.context), model)
        for one in mined.filtered
    ]
    made = (pair_row_or_refusal(pair, _if_known(renderer, *ends_of(pair)), model) for pair in mined.pairs)
    # Candidates have the names of one table, whichever they will stand in.
    pairs = [one if isinstance(one, Refusal) else stored(one, PREFERENCES) for one in made]
    maker, refusals = FactMaker(), list(mined.refusals)
    trajectories = list(accepted(rows.values(), refusals))
    return TreeRows(
        figures_of(tree), _cost(mined), fact_batch(map(maker.facts_of, mined.pairs)),
        packed_rows.pack(pairs, schemas.PREFERENCES), packed_rows.pack(filtered, schemas.FILTERED), trajectories,
        refusals,
    )  # fmt: skip


def _if_known(renderer: Renderer | None, *ends: Context) -> Renderer | None:
    """Return the renderer where the ids of these histories are known or its own to make; logs may have none."""
    return renderer if renderer is not None and all(map(has_ids, ends)) else None


def _cost(mined: MinedTree) -> dict[str, int]:
    again = mined.rejudged
    return {
        "replays": mined.replays,
        "replayed_calls": mined.tool_calls,
        "replays_left_out": mined.left_out,
        "verdicts": 0 if again is None else again.verdicts,
        "rejudged": 0 if again is None else again.judged,
        "rejudged_broken": 0 if again is None else again.broken,
        "disagreed": 0 if again is None else len(again.disagreements),
    }


def rules_of(config: BuildPrefsConfig) -> Balance:
    """Return the rules for the pairs of all trees together."""
    return Balance(config.pairs.per_task, config.pairs.per_depth, config.pairs.length_tolerance)


def asks_policy(config: BuildPrefsConfig) -> bool:
    """Return whether mining asks the policy."""
    return config.pairs.criticality in ("counterfactual", "both")


def _episodes(config: BuildPrefsConfig, spec: EnvSpec, engine: Engine, pool: EnvPool) -> Episodes:
    limits = config.limits
    return Episodes(
        spec, engine, pool, seed=config.seed, max_steps=config.search.max_steps, temperature=config.policy.temperature,
        reset_seconds=limits.reset_seconds,
    )  # fmt: skip


def miner_of(config: BuildPrefsConfig, spec: EnvSpec, rollout: Rollout | None) -> Miner:
    """Return the miner of a run's trees; `rollout` is needed where mining asks the policy."""
    pairs = config.pairs
    relabel = pairs.hindsight != "none" and "hindsight" in pairs.kinds
    kinds = [kind for kind in pairs.kinds if kind != "hindsight" or relabel]
    shorten = "minimal" in kinds or pairs.criticality != "none"
    strategy = "final" if pairs.hindsight == "none" else pairs.hindsight
    return Miner(
        spec,
        steps=StepPairs(
            pairs.min_visits, pairs.min_gap, pairs.confidence, pairs.per_node, value=config.search.value,
            decisive=pairs.decisive,
            exact_terminals=spec.deterministic_verifier, value_source=pairs.value_source,
            critic_alpha=config.search.critic_alpha,
        ),
        trajectory_pairs=TrajectoryPairs(
            pairs.max_extra_steps, certain=spec.deterministic_verifier, cut_failures=pairs.cut_failures
        ),
        hindsight=Hindsight(spec, evaluation_tasks(spec), strategy) if relabel else None,
        minimal=MinimalPairs() if shorten else MinimalPairs(per_tree=0),
        filtered=RejectionFilter(
            config.filtered.per_task, config.filtered.negatives, origins=config.filtered.origins
        ),
        kinds=kinds,
        deletion=pairs.criticality == "deletion",
        rollout=rollout,
        rollouts=pairs.counterfactual_rollouts,
        rejudge=pairs.rejudge,
        replay_budget=pairs.replay_budget,
        step_seconds=config.limits.step_seconds,
        reset_seconds=config.limits.reset_seconds,
        live_states=config.search.state_cache,
    )  # fmt: skip


# -- several processes -----------------------------------------------------------------------------------------------


class MinerProcesses:
    """Tree miners in processes of their own; a bounded number of trees is with them.

    Args:
        settings: Settings of the mining.
        processes: Number of processes.
    """

    def __init__(self, settings: MinerSettings, processes: int) -> None:
        self._ahead = _AHEAD * processes
        self._waiting: deque[Future[TreeRows]] = deque()
        config = type(settings.config), json.dumps(settings.config.model_dump(mode="json"))
        rest = (str(settings.path), settings.replay_only, settings.isolated, settings.renderer, settings.model)
        context = multiprocessing.get_context("spawn")  # threads and open files do not survive a fork
        self._pool = ProcessPoolExecutor(processes, context, _begin, (*config, *rest))

    def map(self, task_ids: Iterable[str]) -> Iterator[TreeRows]:
        """See `TreeMiner.map`. Raises DataError where a process dies."""
        try:
            for task_id in task_ids:
                self._waiting.append(self._pool.submit(_mine, task_id))
                if len(self._waiting) >= self._ahead:
                    yield self._waiting.popleft().result()
            while self._waiting:
                yield self._waiting.popleft().result()
        except BrokenProcessPool as error:
            raise DataError(
                f"a process that builds pairs died ({error}); is there memory for pairs.miners of them? Nothing is "
                "lost: give the same command again"
            ) from error

    def close(self) -> None:
        """End the processes: those that have nothing to do by themselves, the others whatever they are at."""
        processes = list(self._pool._processes.values())
        until = time.monotonic() + (0.0 if self._waiting else _GRACE)
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
            process.terminate()


_miner: TreeMiner | OfflineAgentError | None = None
"""The miner of a process of `MinerProcesses`, or why it has none."""


def _begin(
    kind: type[BuildPrefsConfig], config: str, path: str, replay_only: bool, isolated: bool,
    renderer: Renderer | None, model: str | None,
) -> None:  # fmt: skip
    global _miner
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the command ends its processes itself
    threading.Thread(target=_end_with_parent, daemon=True).start()
    validated = kind.model_validate(json.loads(config))
    try:
        _miner = TreeMiner(MinerSettings(validated, Path(path), replay_only, isolated, renderer, model))
    except OfflineAgentError as error:
        _miner = error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is one of the pool's
    parent.join()
    os._exit(1)


def _mine(task_id: str) -> TreeRows:
    if not isinstance(_miner, TreeMiner):
        raise _miner or RuntimeError("this process was not begun")
    return _miner.mine(task_id)
