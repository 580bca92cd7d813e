"""The tables of `build_prefs`, `import_logs` and `rejudge`: from trees, in one direction.

Each tree gives rows and candidate pairs; the balance chooses among the candidates of all trees; what it kept is
rendered, certified and written.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.envs.base import EnvSpec
from offline_agent.errors import DataError, OfflineAgentError
from offline_agent.pipelines.stages.copy_check import trust_copies, undoing_changes
from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.dataset.candidates import CandidateStore
from offline_agent.preferences.dataset.export import Row, pair_rows
from offline_agent.preferences.mining import Miner, TreeRows, rows_of
from offline_agent.preferences.records import Refusal, together
from offline_agent.rendering.renderer import Renderer
from offline_agent.report.mining import Figures, TreeFigures, figures_of
from offline_agent.runner.components import Parts, make_environment
from offline_agent.runner.pipeline import Session
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.columns import PAIR_TABLES, table_of
from offline_agent.store.run_directory import RunDirectory, read_tree, tree_path
from offline_agent.store.scratch_files import PieceFile

_AHEAD = 4  # trees for each process that wait for it, or for those before them
_GRACE = 10.0  # seconds that idle processes may take to end

Mined = tuple[TreeFigures, TreeRows]
Rendering = tuple[Renderer | None, str | None]


class RefusalLog:
    """Writes each refusal to the quarantine at once, and counts it."""

    def __init__(self, run: RunDirectory, figures: Figures) -> None:
        self._run = run
        self._figures = figures

    def append(self, refusal: Refusal) -> None:
        """Take one; see `preferences.dataset.export.Refusals`."""
        self._run.quarantine(refusal.kind, refusal.name, refusal.reason, **dict(refusal.facts))
        self._figures.refused((refusal,))


def mine(parts: Parts, session: Session[BuildPrefsConfig], figures: Figures) -> None:
    """Build every table from the trees on disk, in task order: a resumed run writes what an uninterrupted one does.

    Trees are read one by one. What cannot be written at once (candidate pairs, until all are known and balanced;
    filtered trajectories, until their table's turn comes) waits in temporary files in the run directory.

    Args:
        parts: Environment, tasks, policy.
        session: The run, with a tree for every task.
        figures: Takes what was found.
    """
    started = time.perf_counter()
    model = parts.policy.identity.get("model_hash")
    rendering = parts.policy.renderer, None if model is None else str(model)
    with undoing_changes(session, parts.spec):
        trust_copies(session, parts.spec, parts.tasks)  # a run whose trees were all there has not tried yet
        session.progress.start(len(parts.tasks), "building pairs")
        with closing(_miner(parts, session, rendering)) as miner:
            write_mined(session, miner.map(task.task_id for task in parts.tasks), figures, rendering)
    figures.seconds["judging"] = time.perf_counter() - started


def write_mined(session: Session[Any], mined: Iterable[Mined], figures: Figures, rendering: Rendering) -> None:
    """Write the tables of what was mined, tree by tree.

    Args:
        session: The run.
        mined: The figures and rows of each tree, in the order of the tables.
        figures: Takes what was found.
        rendering: The renderer of the token columns and the hash of its model, where they are known.
    """
    run = session.run
    refused = RefusalLog(run, figures)
    # A table is written in one stream; rows of another one wait until its turn comes.
    with closing(CandidateStore(run.path)) as candidates, closing(PieceFile(run.path, "filtered")) as filtered:

        def trajectories() -> Iterator[Row]:
            for number, (counted, tree) in enumerate(mined, 1):
                figures.tree(counted, tree.cost)
                candidates.add(tree.facts, tree.pairs)
                filtered.add(pickle.dumps(tree.filtered))
                for refusal in together(tree.refusals):  # quarantine.jsonl has an entry once
                    refused.append(refusal)
                yield from tree.trajectories
                session.progress.update(number, pairs=len(candidates))

        run.write_rows("trajectories", figures.count("trajectories", trajectories()))
        waited = (row for piece in filtered.read() for row in pickle.loads(piece))
        run.write_rows("filtered", figures.count("filtered", waited))
        chosen = Balance(session.config.pairs).choose(candidates.table, refused.append)
        figures.unmatched(chosen.unmatched, chosen.longer)
        for table in PAIR_TABLES:
            kept = candidates.kept(chosen.kept, chosen.weights)
            of_table = (pair for pair in kept if table_of(pair.chosen, pair.rejected) == table)
            rows = pair_rows(of_table, rendering[0], refused, rendering[1])
            run.write_rows(table, figures.count_pairs(rows))


# -- miners ------------------------------------------------------------------------------------------------------------


class TreeMiner:
    """Makes rows of the trees of a run, one tree at a time.

    Args:
        config: The configuration.
        path: The run directory.
        rendering: As of `write_mined`.
        spec: The environment.
    """

    def __init__(self, config: BuildPrefsConfig, path: Path, rendering: Rendering, spec: EnvSpec) -> None:
        self._path = path
        self._rendering = rendering
        self._miner = Miner(
            spec, config.pairs, config.filtered, value=config.search.value, rejudge=config.pairs.rejudge,
            replay_budget=config.pairs.replay_budget, step_seconds=config.limits.step_seconds,
            reset_seconds=config.limits.reset_seconds, live_states=config.search.state_cache,
        )  # fmt: skip

    def __call__(self, task_id: str) -> Mined:
        """Return the data mined from a tree of the run. Raises DataError where its file is broken."""
        tree = tree_from_json(read_tree(tree_path(self._path, task_id)))
        rows = rows_of(self._miner.mine(tree), *self._rendering)
        return figures_of(tree), rows  # mining may put the tree in quarantine

    def map(self, task_ids: Iterable[str]) -> Iterator[Mined]:
        """Yield the data of each tree, in order; raises as a call."""
        return map(self, task_ids)

    def close(self) -> None:
        """Close the environment that was kept for replays."""
        self._miner.close()


def _miner(
    parts: Parts, session: Session[BuildPrefsConfig], rendering: Rendering
) -> TreeMiner | MinerProcesses:
    """Return the miner: in this process, or in others."""
    config, path, spec = session.config, session.run.path, parts.spec
    count = min(config.pairs.miners, len(parts.tasks))
    if count <= 1:
        return TreeMiner(config, path, rendering, spec)
    settings = type(config), json.dumps(config.model_dump(mode="json"))
    return MinerProcesses(partial(_elsewhere, *settings, path, rendering, spec.replay_only, spec.isolated), count)


def _elsewhere(
    kind: type[BuildPrefsConfig], config: str, path: Path, rendering: Rendering, replay_only: bool, isolated: bool
) -> TreeMiner:
    """Return the miner of another process, with what was found out about the environment in the first."""
    validated = kind.model_validate(json.loads(config))
    spec = make_environment(validated)
    spec.replay_only, spec.isolated = replay_only, isolated
    spec.keep_in(path)
    return TreeMiner(validated, path, rendering, spec)


# -- their processes ---------------------------------------------------------------------------------------------------


class MinerProcesses:
    """Miners in processes of their own, in the order of one process; a bounded number of trees is with them.

    Args:
        make: Returns the miner of a process; can be pickled.
        processes: Number of processes.
    """

    def __init__(self, make: Callable[[], TreeMiner], processes: int) -> None:
        self._ahead = _AHEAD * processes
        self._waiting: deque[Future[Mined]] = deque()
        context = multiprocessing.get_context("spawn")  # threads and open files do not survive a fork
        self._pool = ProcessPoolExecutor(processes, context, _begin, (make,))

    def map(self, task_ids: Iterable[str]) -> Iterator[Mined]:
        """Yield what is mined of each tree, in order. Raises DataError where a process dies."""
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


_own_miner: TreeMiner | OfflineAgentError | None = None
"""The miner of a process of `MinerProcesses`, or why it has none."""


def _begin(make: Callable[[], TreeMiner]) -> None:
    global _own_miner
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the command ends its processes itself
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _own_miner = make()
    except OfflineAgentError as error:
        _own_miner = error  # raised where the first tree is asked for: an error here would only break the pool


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is one of the pool's
    parent.join()
    os._exit(1)


def _mine(task_id: str) -> Mined:
    if not callable(_own_miner):
        raise _own_miner or RuntimeError("this process was not begun")
    return _own_miner(task_id)
