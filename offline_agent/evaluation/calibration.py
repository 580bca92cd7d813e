"""Calibration of a judge against a verifier: agreement, Cohen's kappa and error rates, with Wilson intervals.

The verifier's verdicts are taken for true. Trajectories that the judge could not score are counted and left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from offline_agent.evaluation.statistics import wilson
from offline_agent.preferences.pairs.trajectory import trajectories
from offline_agent.records import POLICY_CUTS, Trajectory
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.run_directory import read_tree


class Judged(NamedTuple):
    """One trajectory with both verdicts.

    Attributes:
        truth: The verifier's success.
        said: The judge's; None where it had no score.
        length: Of the trajectory, in any unit.
        score: The judge's score in [0, 1]; None likewise.
    """

    truth: bool
    said: bool | None
    length: float
    score: float | None = None


class Compared(NamedTuple):
    """One comparison of a success with a failure at the same task.

    Attributes:
        right_first: The success stood first.
        right_longer: The success is the longer one; None where both are equally long.
        first: The comparator chose the first; None where it chose neither.
        pair: Number of the pair, which is compared in both orders.
    """

    right_first: bool
    right_longer: bool | None
    first: bool | None
    pair: int

    @property
    def right(self) -> bool | None:
        """Whether the success was chosen; None where neither was."""
        return None if self.first is None else self.first == self.right_first


@dataclass(frozen=True)
class Share:
    """A share with its Wilson interval (Wilson 1927).

    Attributes:
        count: Number that is counted.
        of: Number that it is a share of.
        low, high: Bounds of the interval; None where `of` is 0.
    """

    count: int
    of: int
    low: float | None
    high: float | None

    @property
    def value(self) -> float | None:
        """The share; None where `of` is 0."""
        return self.count / self.of if self.of else None

    def to_json(self) -> dict[str, Any]:
        """Return the share as a JSON-serialisable dict."""
        return {"value": self.value, "low": self.low, "high": self.high, "count": self.count, "of": self.of}


def share(count: int, of: int, confidence: float = 0.95) -> Share:
    """Return a share with the Wilson interval of that coverage."""
    if not of:
        return Share(count, of, None, None)
    return Share(count, of, *wilson(count / of, of, confidence))


def kappa(pairs: Iterable[tuple[bool, bool]]) -> float | None:
    """Return Cohen's kappa (Cohen 1960): agreement beyond that of two judges with these rates; None where undefined.

    Args:
        pairs: Verdicts of the two.
    """
    known = list(pairs)
    if not known:
        return None
    n = len(known)
    observed = sum(one == other for one, other in known) / n
    one, other = sum(a for a, _ in known) / n, sum(b for _, b in known) / n
    expected = one * other + (1 - one) * (1 - other)
    return None if expected == 1 else (observed - expected) / (1 - expected)


def agreement(judged: Sequence[Judged], confidence: float = 0.95) -> dict[str, Any]:
    """Return how a judge agrees with the verifier, as JSON: agreement, kappa, false positives and negatives."""
    known = [(one.truth, one.said) for one in judged if one.said is not None]
    wrong, right = [said for truth, said in known if not truth], [said for truth, said in known if truth]
    return {
        "judged": len(known),
        "unscored": len(judged) - len(known),
        "successes": len(right),
        "agreement": share(sum(a == b for a, b in known), len(known), confidence).to_json(),
        "kappa": kappa(known),
        "false_positives": share(sum(wrong), len(wrong), confidence).to_json(),
        "false_negatives": share(len(right) - sum(right), len(right), confidence).to_json(),
    }


def by_length(judged: Sequence[Judged], bins: int, confidence: float = 0.95) -> list[dict[str, Any]]:
    """Return `agreement` in classes of length that have about as many trajectories each, the shortest first."""
    ordered = sorted(judged, key=lambda one: one.length)
    edges = [round(len(ordered) * number / bins) for number in range(bins + 1)]
    out = []
    for start, end in zip(edges, edges[1:], strict=False):
        if part := ordered[start:end]:
            span = {"from": part[0].length, "to": part[-1].length}
            out.append({"length": span, **agreement(part, confidence)})
    return out


def length_effect(judged: Sequence[Judged]) -> float | None:
    """Return the correlation of the judge's score with the length, among equals in truth; None where undefined.

    Scores and lengths are taken relative to the mean of their class (success or failure), so that a length that goes
    with success is no bias.
    """
    x: list[float] = []
    y: list[float] = []
    for truth in (True, False):
        part = [(one.length, one.score) for one in judged if one.truth == truth and one.score is not None]
        if part:
            mean = sum(length for length, _ in part) / len(part), sum(score for _, score in part) / len(part)
            x += [length - mean[0] for length, _ in part]
            y += [score - mean[1] for _, score in part]
    spread = math.sqrt(sum(a * a for a in x) * sum(b * b for b in y))
    return sum(a * b for a, b in zip(x, y, strict=True)) / spread if spread > 1e-12 else None


def preference(compared: Sequence[Compared], confidence: float = 0.95) -> dict[str, Any]:
    """Return how a comparator agrees with the verifier, as JSON: accuracy, by the place and length of the success."""

    def right(rule: Callable[[Compared], bool]) -> dict[str, Any]:
        some = [one.right for one in compared if rule(one) and one.right is not None]
        return share(sum(map(bool, some)), len(some), confidence).to_json()

    decided = [one for one in compared if one.first is not None]
    pairs: dict[int, list[bool]] = {}
    for one in decided:
        pairs.setdefault(one.pair, []).append(bool(one.right))
    both = [said for said in pairs.values() if len(said) == 2]
    return {
        "comparisons": len(compared),
        "undecided": len(compared) - len(decided),
        "accuracy": right(lambda one: True),
        "chose_first": share(sum(bool(one.first) for one in decided), len(decided), confidence).to_json(),
        "swayed_by_order": share(sum(a != b for a, b in both), len(both), confidence).to_json(),
        "by_position": {
            "success_first": right(lambda one: one.right_first),
            "success_second": right(lambda one: not one.right_first),
        },
        "by_length": {
            "success_longer": right(lambda one: one.right_longer is True),
            "success_shorter": right(lambda one: one.right_longer is False),
        },
    }


def biases(pointwise: dict[str, Any] | None, pairwise: dict[str, Any] | None) -> list[str]:
    """Return a sentence for each bias whose intervals do not overlap."""
    found = []
    classes = [] if pointwise is None else pointwise["by_length"]
    if len(classes) > 1 and _apart(classes[-1]["false_positives"], classes[0]["false_positives"]):
        found.append("length: failures that are long pass more often than short ones")
    elif len(classes) > 1 and _apart(classes[0]["false_positives"], classes[-1]["false_positives"]):
        found.append("length: failures that are short pass more often than long ones")
    if pairwise is not None:
        place, size = pairwise["by_position"], pairwise["by_length"]
        if _apart(place["success_first"], place["success_second"]):
            found.append("position: the first attempt is preferred")
        elif _apart(place["success_second"], place["success_first"]):
            found.append("position: the second attempt is preferred")
        if _apart(size["success_longer"], size["success_shorter"]):
            found.append("length: the longer attempt is preferred")
        elif _apart(size["success_shorter"], size["success_longer"]):
            found.append("length: the shorter attempt is preferred")
    return found


def _apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether the first share is above the second, by intervals that do not overlap."""
    return one["low"] is not None and other["high"] is not None and one["low"] > other["high"]


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
