"""One tree in, what is written of it out: in this process, or in others beside it, to the same bytes.

Knows how a tree becomes rows; nothing of tables, and nothing of what trees have to do with each other.
"""

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
from typing import Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import DataError, OfflineAgentError
from offline_agent.policies.base import Engine
from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.dataset.candidate_files import Kept, Same, kept_of, pack, unpack
from offline_agent.preferences.dataset.candidates import FactMaker, PairFacts
from offline_agent.preferences.dataset.export import pair_rows, trajectory_rows
from offline_agent.preferences.dataset.filters import RejectionFilter
from offline_agent.preferences.mining import Mined, Miner
from offline_agent.preferences.pairs.hindsight import Hindsight, evaluation_tasks
from offline_agent.preferences.pairs.minimal import MinimalPairs, Rollout
from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.preferences.pairs.trajectory import TrajectoryPairs
from offline_agent.preferences.refusals import Refusal
from offline_agent.rendering.renderer import Renderer
from offline_agent.report.build_prefs import Row, TreeFigures, figures_of
from offline_agent.rollouts.episodes import Episodes, continuations
from offline_agent.runner.components import make_environment
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.run_directory import read_tree, tree_path

_AHEAD = 4  # trees for each process that wait for it, or for those before them
_GRACE = 10.0  # seconds that idle processes may take to end


@dataclass(frozen=True, slots=True)
class TreeRows:
    """What one tree gave, ready to be written.

    Attributes:
        figures: Of the tree.
        mining: What mining it cost and left out, counts that are added up.
        facts: Of its pairs, for balancing.
        pairs, filtered: Both as `shelf.pack` packs them.
        trajectories: Rows.
        refusals: What was refused of it, rows included, in that order.
    """

    figures: TreeFigures
    mining: Mapping[str, int]
    facts: list[PairFacts]
    pairs: bytes
    filtered: bytes
    trajectories: Sequence[Row]
    refusals: list[Refusal]


Made = tuple[Sequence[Row], list[Refusal]]
"""Rows, and the refusals of those that could not be made."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What mining needs; can be handed to another process, its engine excepted.

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
        setup: What it needs.
        spec: The environment; None = made from the configuration.
        engine: The policy's, for counterfactual roll-outs.
    """

    def __init__(self, setup: Setup, spec: EnvSpec | None = None, engine: Engine | None = None) -> None:
        if spec is None:
            spec = make_environment(setup.config)
            spec.replay_only, spec.isolated = setup.replay_only, setup.isolated
        self._setup = setup
        self._pool: EnvPool | None = None
        rollout = None
        if asks_policy(config := setup.config):
            assert engine is not None  # `pairs.miners` is refused then
            self._pool = EnvPool(config.limits.workers, config.limits.step_seconds)
            rollout = partial(continuations, _episodes(config, spec, engine, self._pool))
        self._miner = miner_of(config, spec, rollout)
        self._maker = FactMaker()
        self._same = Same()

    def tree(self, task_id: str) -> TreeRows:
        """Return what a tree of the run gave. Raises DataError where its file is broken."""
        setup = self._setup
        tree = tree_from_json(read_tree(tree_path(setup.path, task_id)))
        for node in tree.nodes:
            node.context.tools = self._same.of(node.context.tools)
        mined = self._miner.mine(tree)
        refusals = list(mined.refusals)
        rows = list(trajectory_rows(mined.trajectories, setup.renderer, refusals, setup.model))
        facts = [self._maker.facts_of(pair) for pair in mined.pairs]
        self._maker.forget()
        return TreeRows(
            figures_of(tree), _cost(mined), facts, pack(mined.pairs), pack(mined.filtered), rows,
            refusals,
        )  # fmt: skip

    def filtered(self, packed: bytes) -> Made:
        """Return the rows of packed trajectories."""
        refusals: list[Refusal] = []
        rows = trajectory_rows(unpack(packed, self._same), self._setup.renderer, refusals, self._setup.model)
        return list(rows), refusals

    def pairs(self, packed: bytes, kept: Kept) -> Made:
        """Return the rows of those of a tree's packed pairs that are kept."""
        refusals: list[Refusal] = []
        pairs = kept_of(unpack(packed, self._same), kept)
        return list(pair_rows(pairs, self._setup.renderer, refusals, self._setup.model)), refusals

    def map(self, what: str, jobs: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield what a method of this class makes of each job's arguments, in order; raises as it."""
        method = getattr(self, what)
        for job in jobs:
            yield method(*job)

    def close(self) -> None:
        """Close the environment that was kept for replays, and end the threads of counterfactual roll-outs."""
        self._miner.close()
        if self._pool is not None:
            self._pool.close()


def _cost(mined: Mined) -> dict[str, int]:
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
    """Return what mines the trees of a run; `rollout` is needed where mining asks the policy."""
    pairs = config.pairs
    relabel = pairs.hindsight != "none" and "hindsight" in pairs.kinds
    kinds = [kind for kind in pairs.kinds if kind != "hindsight" or relabel]
    shorten = "minimal" in kinds or pairs.criticality != "none"
    strategy = "final" if pairs.hindsight == "none" else pairs.hindsight
    return Miner(
        spec,
        steps=StepPairs(
            pairs.min_visits, pairs.min_gap, pairs.confidence, pairs.per_node, value=config.search.value,
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
    """Tree miners in processes of their own; a bounded number of jobs is with them.

    Args:
        setup: What each needs.
        processes: How many.
    """

    def __init__(self, setup: Setup, processes: int) -> None:
        self._ahead = _AHEAD * processes
        self._waiting: deque[Future[Any]] = deque()
        config = type(setup.config), json.dumps(setup.config.model_dump(mode="json"))
        rest = (str(setup.path), setup.replay_only, setup.isolated, setup.renderer, setup.model)
        context = multiprocessing.get_context("spawn")  # threads and open files do not survive a fork
        self._pool = ProcessPoolExecutor(processes, context, _begin, (*config, *rest))

    def map(self, what: str, jobs: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """See `TreeMiner.map`. Raises DataError where a process dies."""
        try:
            for job in jobs:
                self._waiting.append(self._pool.submit(_carry_out, what, job))
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


_here: TreeMiner | OfflineAgentError | None = None
"""A process's own, or why it has none."""


def _begin(
    kind: type[BuildPrefsConfig], config: str, path: str, replay_only: bool, isolated: bool,
    renderer: Renderer | None, model: str | None,
) -> None:  # fmt: skip
    global _here
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the command ends its processes itself
    threading.Thread(target=_end_with_parent, daemon=True).start()
    setup = Setup(kind.model_validate(json.loads(config)), Path(path), replay_only, isolated, renderer, model)
    try:
        _here = TreeMiner(setup)
    except OfflineAgentError as error:
        _here = error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is one of the pool's
    parent.join()
    os._exit(1)


def _carry_out(what: str, job: tuple[Any, ...]) -> Any:
    if not isinstance(_here, TreeMiner):
        raise _here or RuntimeError("this process was not begun")
    return getattr(_here, what)(*job)
