"""The mining of `build_prefs`: from the trees of the run directory to its tables, in one direction.

Each tree gives rows and candidate pairs; the balance chooses among the candidates of all trees; what it kept is
written. Figures of mining that is done are kept in `mined.json`, so that it is not done again while code, trees and
tables are as they were.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.errors import DataError
from offline_agent.pipelines.stages.copy_check import trust_copies, undoing_changes
from offline_agent.pipelines.stages.miners import MinerProcesses, MinerSettings, TreeMiner, TreeRows, rules_of
from offline_agent.policies.base import Engine
from offline_agent.preferences.dataset.balance import Balance, WeightedPairs
from offline_agent.preferences.dataset.candidates import CandidateStore
from offline_agent.preferences.dataset.export import Row, accepted, reweighted
from offline_agent.preferences.dataset.packed_rows import unpack
from offline_agent.preferences.refusals import Refusal, together
from offline_agent.records import SCHEMA_VERSION
from offline_agent.report.mining import Figures
from offline_agent.runner.components import Parts
from offline_agent.runner.pipeline import Session
from offline_agent.store import schemas
from offline_agent.store.columns import MULTITURN, PAIR_TABLES, PREFERENCES, table_of
from offline_agent.store.files import read_json, write_json
from offline_agent.store.provenance import hash_path
from offline_agent.store.run_directory import RunDirectory
from offline_agent.store.scratch_files import PieceFile

FIGURES_FILE = "mined.json"
_WRITTEN = (*PAIR_TABLES, "trajectories", "filtered", "quarantine.jsonl")


class RefusalLog:
    """Writes each refusal to the quarantine at once, and counts it."""

    def __init__(self, run: RunDirectory, figures: Figures) -> None:
        self._run = run
        self._figures = figures

    def append(self, refusal: Refusal) -> None:
        """Take one; see `preferences.dataset.export.Refusals`."""
        self._run.quarantine(refusal.kind, refusal.name, refusal.reason, **dict(refusal.facts))
        self._figures.refused((refusal,))


def mine(parts: Parts, session: Session[BuildPrefsConfig], engine: Engine, figures: Figures) -> None:
    """Build every table from the trees on disk, in task order: a resumed run writes what an uninterrupted one does.

    Where an earlier session did so from the same trees with the same code, its figures are taken over instead.

    Trees are read one by one. What cannot be written at once (candidate pairs, until all are known and balanced;
    filtered trajectories, until their table's turn comes) waits in temporary files in the run directory.

    Args:
        parts: Environment, tasks, policy.
        session: The run, with a tree for every task.
        engine: The policy's, for counterfactual roll-outs.
        figures: Takes what was found.
    """
    started = time.perf_counter()
    known = kept_figures(session.run)
    if known is None or not figures.take_over(known):
        with undoing_changes(session, parts.spec):
            write_tables(parts, session, engine, figures)
        keep_figures(session.run, figures.of_trees())
    figures.seconds["judging"] = time.perf_counter() - started


def write_tables(parts: Parts, session: Session[BuildPrefsConfig], engine: Engine, figures: Figures) -> None:
    """Mine every tree and write the tables; arguments as of `mine`."""
    trust_copies(session, parts.spec, parts.tasks)  # a run whose trees were all there has not tried yet
    session.progress.start(len(parts.tasks), "building pairs")
    with closing(_miner(parts, session, engine)) as miner:
        mined = miner.map(task.task_id for task in parts.tasks)
        write_mined(session, mined, rules_of(session.config), figures)


def write_mined(session: Session[Any], mined: Iterable[TreeRows], rules: Balance, figures: Figures) -> None:
    """Write the tables of what was mined, tree by tree.

    Args:
        session: The run.
        mined: The rows of each tree, in the order of the tables.
        rules: Choose among the pairs of all trees.
        figures: Takes what was found.
    """
    run = session.run
    refused = RefusalLog(run, figures)
    with ExitStack() as stack:
        candidates = stack.enter_context(closing(CandidateStore(run.path, schemas.PREFERENCES)))
        filtered = stack.enter_context(closing(PieceFile(run.path, "filtered")))

        def trajectories() -> Iterator[Row]:
            for number, tree in enumerate(mined, 1):
                figures.tree(tree.figures, tree.mining)
                candidates.add(tree.candidates, tree.pairs)
                if tree.filtered:
                    filtered.add(tree.filtered)
                for refusal in together(tree.refusals):  # quarantine.jsonl has an entry once
                    refused.append(refusal)
                yield from tree.trajectories
                session.progress.update(number, pairs=len(candidates))

        run.write_rows("trajectories", figures.count("trajectories", trajectories()), schemas.TRAJECTORIES)
        successes = accepted((row for packed in filtered.read() for row in unpack(packed, schemas.FILTERED)), refused)
        run.write_rows("filtered", figures.count("filtered", successes), schemas.FILTERED)
        filtered.close()
        chosen = rules.choose(candidates.facts, refused.append)
        figures.unmatched(chosen.unmatched, chosen.longer)
        pairs = figures.count_pairs(_pairs(candidates, chosen, refused))
        single = (reweighted(row) for row in pairs if table_of(row) == PREFERENCES)
        run.write_rows(PREFERENCES, single, schemas.PREFERENCES)
        # A table is written in one stream, so the kept pairs are read once more for the other; all are counted above.
        others = (reweighted(row) for row in _pairs(candidates, chosen, []) if table_of(row) == MULTITURN)
        run.write_rows(MULTITURN, others, schemas.MULTITURN)


def _pairs(candidates: CandidateStore, chosen: WeightedPairs, refused: RefusalLog | list[Refusal]) -> Iterator[Row]:
    """Yield the rows of the pairs that are kept, with their weights; their certificates still say weight 1."""
    rows = zip(candidates.rows(chosen.kept), chosen.weights.tolist(), strict=True)
    return accepted((row if isinstance(row, Refusal) else {**row, "weight": weight} for row, weight in rows), refused)


def _miner(parts: Parts, session: Session[BuildPrefsConfig], engine: Engine) -> TreeMiner | MinerProcesses:
    """Return the miner: in this process, or in others."""
    model = parts.policy.identity.get("model_hash")
    settings = MinerSettings(
        session.config, session.run.path, parts.spec.replay_only, parts.spec.isolated, parts.policy.renderer,
        None if model is None else str(model),
    )  # fmt: skip
    count = min(session.config.pairs.miners, len(parts.tasks))
    return MinerProcesses(settings, count) if count > 1 else TreeMiner(settings, parts.spec, engine)


# -- mining that is done ---------------------------------------------------------------------------------------------


def kept_figures(run: RunDirectory) -> Mapping[str, Any] | None:
    """Return the figures that were kept; None where there are none, or where code, trees or tables differ since."""
    path = run.path / FIGURES_FILE
    if not path.exists():
        return None
    try:
        kept = read_json(path, "")
        sound = kept["schema_version"] == SCHEMA_VERSION and kept["of"] == _state(run)
        return dict(kept["figures"]) if sound else None
    except (DataError, KeyError, TypeError, ValueError):
        return None  # it only saves work


def keep_figures(run: RunDirectory, figures: Mapping[str, Any]) -> None:
    """Keep the figures of mining that is done, with what they hold for. Raises DataError where the disk refused."""
    run.quarantined.close()  # what follows hashes it
    write_json(run.path / FIGURES_FILE, {"schema_version": SCHEMA_VERSION, "of": _state(run), "figures": figures})


def _state(run: RunDirectory) -> dict[str, Any]:
    """Return the inputs and outputs of mining: the hashes of the code and of the files' content."""
    resumed = run.manifest.get("resumed")
    code = resumed[-1]["code"] if resumed else run.manifest["hashes"]["code"]
    files = {name: run.path / name for name in ("trees", *_WRITTEN)}
    return {"code": code, **{name: hash_path(path) if path.exists() else "" for name, path in files.items()}}
