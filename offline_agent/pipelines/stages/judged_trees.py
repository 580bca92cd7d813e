"""Trajectories in the trees of run directories that a verifier judged: the truth that others are held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from offline_agent.preferences.pairs.trajectory import trajectories
from offline_agent.records import POLICY_CUTS, Trajectory
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.run_directory import read_tree


def find_trees(source: Sequence[str], faults: list[str]) -> list[Path]:
    """Return the files of the trees of runs, in order; what is wrong is added to `faults`."""
    if not source:
        faults.append("source: nothing to read; name run directories of build_prefs or import_logs, source=RUN_DIR")
    found: list[Path] = []
    for run in source:
        trees = sorted(Path(run, "trees").glob("*.json.gz"))
        if not trees:
            faults.append(f"source: {run} has no trees/; allowed: run directories of build_prefs or import_logs")
        found += trees
    return found


def judged(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a tree whose verdict has a score; those that a limit of the policy cut have none.

    Raises:
        DataError: The file is broken.
    """
    for one in trajectories(tree_from_json(read_tree(path))):
        if one.verdict is not None and one.verdict.score is not None and one.verdict.verifier not in POLICY_CUTS:
            yield one
