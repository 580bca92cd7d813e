"""The tables of `build_prefs`, `import_logs` and `rejudge`: from trees, in one direction.

Each tree gives rows and candidate pairs; the balance chooses among the candidates of all trees; what it kept is
rendered, certified and written.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.pipelines.stages.copy_check import trust_copies, undoing_changes
from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.dataset.candidates import CandidateStore
from offline_agent.preferences.dataset.export import Row, pair_rows
from offline_agent.preferences.mining import Miner, TreeRows, rows_of
from offline_agent.preferences.records import Refusal, together
from offline_agent.rendering.renderer import Renderer
from offline_agent.report.mining import Figures, TreeFigures, figures_of
from offline_agent.runner.components import Parts
from offline_agent.runner.pipeline import Session
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.columns import PAIR_TABLES, table_of
from offline_agent.store.run_directory import RunDirectory, read_tree, tree_path
from offline_agent.store.scratch_files import PieceFile

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
        with closing(_miner(session.config, parts)) as miner:

            def mined() -> Iterator[Mined]:
                for task in parts.tasks:
                    tree = tree_from_json(read_tree(tree_path(session.run.path, task.task_id)))
                    rows = rows_of(miner.mine(tree), *rendering)
                    yield figures_of(tree), rows  # mining may put the tree in quarantine

            write_mined(session, mined(), figures, rendering)
    figures.seconds["judging"] = time.perf_counter() - started


def _miner(config: BuildPrefsConfig, parts: Parts) -> Miner:
    return Miner(
        parts.spec, config.pairs, config.filtered, value=config.search.value, rejudge=config.pairs.rejudge,
        replay_budget=config.pairs.replay_budget, step_seconds=config.limits.step_seconds,
        reset_seconds=config.limits.reset_seconds, live_states=config.search.state_cache,
    )  # fmt: skip


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
