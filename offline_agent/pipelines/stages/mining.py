"""The mining of `build_prefs`: trees in the run directory in, its tables out."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.pipelines.stages import mining_record
from offline_agent.pipelines.stages.copy_check import trust_copies, undoing_changes
from offline_agent.pipelines.stages.miners import MinerProcesses, Setup, TreeMiner, rules_of
from offline_agent.policies.base import Engine
from offline_agent.preferences.dataset.candidate_files import PairShelf
from offline_agent.preferences.refusals import Refusal
from offline_agent.report.build_prefs import Figures, Row
from offline_agent.runner.components import Parts
from offline_agent.runner.pipeline import Session
from offline_agent.store import schemas
from offline_agent.store.columns import MULTITURN, PREFERENCES, table_of
from offline_agent.store.run_directory import RunDirectory
from offline_agent.store.scratch_files import PieceFile


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
    kept = mining_record.known(session.run)
    if kept is None or not figures.take_over(kept):
        with undoing_changes(session, parts.spec):
            _mine(parts, session, engine, figures)
        mining_record.keep(session.run, figures.of_trees())
    figures.seconds["judging"] = time.perf_counter() - started


def _mine(parts: Parts, session: Session[BuildPrefsConfig], engine: Engine, figures: Figures) -> None:
    config, run_dir = session.config, session.run
    refused = _Refused(run_dir, figures)
    trust_copies(session, parts.spec, parts.tasks)  # a run whose trees were all there has not tried yet
    session.progress.start(len(parts.tasks), "building pairs")
    with ExitStack() as stack:
        pairs = stack.enter_context(closing(PairShelf(run_dir.path)))
        filtered = stack.enter_context(closing(PieceFile(run_dir.path, "filtered")))
        miner = stack.enter_context(closing(_miner(parts, session, engine)))

        def rows(what: str, jobs: Iterable[tuple[Any, ...]]) -> Iterator[Row]:
            for made, refusals in miner.map(what, jobs):
                for refusal in refusals:
                    refused.append(refusal)
                yield from made

        def trajectories() -> Iterator[Row]:
            for number, one in enumerate(miner.map("tree", ((task.task_id,) for task in parts.tasks)), 1):
                figures.tree(one.figures, one.mining)
                pairs.add(one.facts, one.pairs)
                if one.filtered:
                    filtered.add(one.filtered)
                for refusal in one.refusals:
                    refused.append(refusal)
                yield from one.trajectories
                session.progress.update(number, pairs=len(pairs))

        run_dir.write_rows("trajectories", figures.count("trajectories", trajectories()), schemas.TRAJECTORIES)
        found = rows("filtered", ((packed,) for packed in filtered.read()))
        run_dir.write_rows("filtered", figures.count("filtered", found), schemas.FILTERED)
        filtered.close()
        found = rows("pairs", pairs.choose(rules_of(config), refused.append))
        several = stack.enter_context(closing(PieceFile(run_dir.path, MULTITURN)))
        run_dir.write_rows(PREFERENCES, _single(figures.count_pairs(found), several), schemas.PREFERENCES)
        run_dir.write_rows(MULTITURN, map(pickle.loads, several.read()), schemas.MULTITURN)


def _single(rows: Iterable[Row], several: PieceFile) -> Iterator[Row]:
    """Yield the rows of pairs whose sides are one turn each; put the others by, for the table that comes next."""
    for row in rows:
        if table_of(row) == PREFERENCES:
            yield row
        else:
            several.add(pickle.dumps(row, pickle.HIGHEST_PROTOCOL))


def _miner(parts: Parts, session: Session[BuildPrefsConfig], engine: Engine) -> TreeMiner | MinerProcesses:
    """Return what mines: this process, or others."""
    known = parts.policy.identity.get("model_hash")
    model = None if known is None else str(known)
    spec = parts.spec
    setup = Setup(
        session.config, session.run.path, spec.replay_only, spec.isolated, parts.policy.renderer, model
    )  # fmt: skip
    count = min(session.config.pairs.miners, len(parts.tasks))
    return MinerProcesses(setup, count) if count > 1 else TreeMiner(setup, spec, engine)
