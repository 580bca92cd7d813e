"""Agreement of a judge with a verifier whose verdicts count as true: shares with Wilson intervals, Cohen's kappa."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from offline_agent.evaluation.statistics import wilson
from offline_agent.preferences.pairs.trajectory import trajectories
from offline_agent.records import POLICY_CUTS, Trajectory
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.run_directory import read_tree


def share(count: int, of: int, confidence: float = 0.95) -> dict[str, Any]:
    """Return a share with its Wilson interval (Wilson 1927) as JSON; None in place of its figures where `of` is 0."""
    low, high = wilson(count / of, of, confidence) if of else (None, None)
    return {"value": count / of if of else None, "low": low, "high": high, "count": count, "of": of}


def kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """Return Cohen's kappa (Cohen 1960): agreement beyond that of two judges with these rates; None where undefined.

    Args:
        pairs: Verdicts of the two.
    """
    if not pairs:
        return None
    n = len(pairs)
    observed = sum(one == other for one, other in pairs) / n
    one, other = sum(a for a, _ in pairs) / n, sum(b for _, b in pairs) / n
    expected = one * other + (1 - one) * (1 - other)
    return None if expected == 1 else (observed - expected) / (1 - expected)


def agreement(pairs: Sequence[tuple[bool, bool]], confidence: float = 0.95) -> dict[str, Any]:
    """Return how a judge agrees with the verifier, as JSON: agreement, kappa, false positives and negatives.

    Args:
        pairs: The success by the verifier, and by the judge.
        confidence: Of the intervals.
    """
    wrong, right = [said for truth, said in pairs if not truth], [said for truth, said in pairs if truth]
    return {
        "judged": len(pairs),
        "successes": len(right),
        "agreement": share(sum(a == b for a, b in pairs), len(pairs), confidence),
        "kappa": kappa(pairs),
        "false_positives": share(sum(wrong), len(wrong), confidence),
        "false_negatives": share(len(right) - sum(right), len(right), confidence),
    }


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


def judged_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a tree whose verdict has a score; those that a limit of the policy cut have none.

    Raises:
        DataError: The file is broken.
    """
    for one in trajectories(tree_from_json(read_tree(path))):
        if one.verdict is not None and one.verdict.score is not None and one.verdict.verifier not in POLICY_CUTS:
            yield one
