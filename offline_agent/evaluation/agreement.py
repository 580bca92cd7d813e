"""Agreement of a judge with a verifier whose verdicts count as true: shares with Wilson intervals, Cohen's kappa."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from offline_agent.evaluation.statistics import mean_over_tasks, wilson
from offline_agent.preferences.pairs.trajectory import trajectories
from offline_agent.records import POLICY_CUTS, Trajectory
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.run_directory import read_tree, tree_id_of, trees_in_quarantine


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


def auc(rows: Iterable[tuple[float, float, float]]) -> float | None:
    """Return P(prediction of a success > that of a failure) + P(equal)/2; None without one of each.

    Args:
        rows: Prediction, and the mass of successes and of failures that it stands for.
    """
    won = successes = failures = 0.0
    for _, equal in groupby(sorted(rows), key=itemgetter(0)):
        same = list(equal)
        up, down = sum(row[1] for row in same), sum(row[2] for row in same)
        won += up * (failures + down / 2)
        successes, failures = successes + up, failures + down
    return won / (successes * failures) if successes and failures else None


def turn_figures(rows: Sequence[tuple[str, float, float, int]], confidence: float, seed: int) -> dict[str, Any]:
    """Return how predictions agree with the values of turns, each weighted by its visits, as JSON.

    `brier` is the mean squared difference, `brier_of_mean` that of the mean value for all, `calibration` the mean
    difference of prediction and value within ten bins of predictions; `auc` is over all rollouts through all turns,
    `auc_within_tasks` its mean over tasks that have successes and failures, with an interval clustered by task.

    Args:
        rows: Task, prediction, value and visits of each turn.
        confidence: Of the interval.
        seed: Of the interval.
    """
    masses: dict[str, list[tuple[float, float, float]]] = {}
    bins = [0.0] * 10
    for task, told, value, visits in rows:
        masses.setdefault(task, []).append((told, value * visits, (1 - value) * visits))
        bins[min(9, int(told * 10))] += visits * (told - value)
    whole = sum(visits for *_, visits in rows)
    mean = sum(value * visits for _, _, value, visits in rows) / whole
    within = {task: [auc(each)] for task, each in masses.items()}
    return {
        "turns": len(rows),
        "visits": whole,
        "tasks": len(masses),
        "value": mean,
        "brier": sum(visits * (told - value) ** 2 for _, told, value, visits in rows) / whole,
        "brier_of_mean": sum(visits * (mean - value) ** 2 for _, _, value, visits in rows) / whole,
        "calibration": sum(map(abs, bins)) / whole,
        "auc": auc(row for each in masses.values() for row in each),
        "auc_within_tasks": mean_over_tasks(within, confidence, 2000, seed).to_json(),
    }


def find_trees(source: Sequence[str], faults: list[str]) -> list[Path]:
    """Return the files of the trees of runs, in order; what is wrong is added to `faults`.

    Trees in quarantine are left out.
    """
    if not source:
        faults.append("source: nothing to read; name run directories of build_prefs or import_logs, source=RUN_DIR")
    found: list[Path] = []
    for run in source:
        trees = sorted(Path(run, "trees").glob("*.json.gz"))
        if not trees:
            faults.append(f"source: {run} has no trees/; allowed: run directories of build_prefs or import_logs")
        noise = trees_in_quarantine(Path(run))
        found += [tree for tree in trees if not noise or tree_id_of(tree) not in noise]
    return found


def judged_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a tree whose verdict has a score; those that a limit of the policy cut have none.

    Raises:
        DataError: The file is broken.
    """
    for one in trajectories(tree_from_json(read_tree(path))):
        if one.verdict is not None and one.verdict.score is not None and one.verdict.verifier not in POLICY_CUTS:
            yield one
