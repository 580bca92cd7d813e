"""Statistics of attempts: means over tasks with intervals, and paired comparisons.

Tasks are the units that were drawn; attempts at one task are not independent. So every mean is over tasks (of each
task's own mean), and every interval comes from resampling whole tasks: it is clustered by task. Attempts that could
not be scored are None: they are left out and counted, never taken for 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Outcomes = Mapping[str, Sequence[float | None]]
"""By task: the score of each attempt, or None where it has none."""

EXACT = 16  # tasks that differ, up to which all 2**n signs are tried
FEW = 5  # tasks that went the other way, below which resampling is too sure of itself
_AT_ONCE = 2_000_000  # numbers drawn in one go


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks.

    Attributes:
        mean: None where nothing could be scored; `error` says so.
        low, high: The interval's bounds; None as `mean` is.
        tasks: Number of tasks the mean is over.
        unscored_tasks: Number of tasks left out because none of their attempts counts.
        method: `bootstrap`, or `bootstrap+wilson` where too few tasks went the other way for resampling alone.
        error: Why there is no mean; None where there is one.
    """

    mean: float | None
    low: float | None
    high: float | None
    tasks: int
    unscored_tasks: int
    method: str
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return mean, low, high, the method, and the error where there is one."""
        out: dict[str, Any] = {"mean": self.mean, "low": self.low, "high": self.high, "method": self.method}
        return out if self.error is None else {**out, "error": self.error}


@dataclass(frozen=True, slots=True)
class Difference:
    """A candidate's mean minus another's, over the tasks both were scored on.

    Attributes:
        mean, low, high: As in `Estimate`.
        p_value: Two-sided, by flipping the signs of the tasks' differences; None as `mean` is.
        tasks: Number of tasks compared.
        differing: Number of those on which the two differ.
        unpaired_tasks: Number of tasks left out: not tried, or not scored, on one of the two sides.
        method: As in `Estimate`; `p_method` is `exact` or `monte_carlo`.
        error: Why there is no figure; None where there is one.
    """

    mean: float | None
    low: float | None
    high: float | None
    p_value: float | None
    tasks: int
    differing: int
    unpaired_tasks: int
    method: str
    p_method: str
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the layout of summary.json: the difference with its interval, the p-value, and the counts."""
        out: dict[str, Any] = {
            "difference": {"mean": self.mean, "low": self.low, "high": self.high, "method": self.method},
            "p_value": self.p_value,
            "p_method": self.p_method,
            "tasks": self.tasks,
            "tasks_that_differ": self.differing,
            "tasks_left_out": self.unpaired_tasks,
        }
        return out if self.error is None else {**out, "error": self.error}


def recorded(rows: Iterable[Mapping[str, Any]], column: str) -> dict[str, list[float | None]]:
    """Return a column of rows of the table `attempts` by task, in the order of the rows."""
    out: dict[str, list[float | None]] = {}
    for row in rows:
        value = row[column]
        out.setdefault(row["task_id"], []).append(None if value is None else float(value))
    return out


def task_means(outcomes: Outcomes) -> dict[str, float]:
    """Return the mean of each task's scored attempts; a task without any is left out.

    Tasks are sorted by name, so that the same attempts give the same interval in whatever order they were read.
    """
    out = {}
    for task, scores in sorted(outcomes.items()):
        scored = [float(score) for score in scores if score is not None]
        if scored:
            out[task] = math.fsum(scored) / len(scored)
    return out


def mean_over_tasks(outcomes: Outcomes, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0) -> Estimate:
    """Return the mean over tasks of scores in [0, 1]; see `estimate`."""
    means = task_means(outcomes)
    return estimate(list(means.values()), len(outcomes) - len(means), confidence, resamples, seed)


def estimate(
    values: Sequence[float], unscored: int = 0, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """Return the mean of one value a task, with a percentile-bootstrap interval over tasks.

    Where fewer than `FEW` tasks have another value than 0 (or than 1), or all have the same, resampling shows too
    little spread, or none: the interval then reaches at least as far as Wilson's for as many independent tasks
    (Wilson 1927), which for all failures or all successes is close to the rule of three.

    Args:
        values: float [tasks], each in [0, 1].
        unscored: Number of tasks that have no value.
        confidence: Of the interval, in (0, 1).
        resamples: Bootstrap resamples.
        seed: Of the resampling.
    """
    x = np.asarray(values, dtype=np.float64)
    if not len(x):
        return Estimate(None, None, None, 0, unscored, "none", "no task has a scored attempt")
    if x.min() < 0 or x.max() > 1:
        raise ValueError(f"values must be in [0, 1], got {x.min()} to {x.max()}")
    mean = float(x.mean())
    low, high = _quantiles(resampled_means(x, resamples, seed), confidence)
    if not too_alike(x):
        return Estimate(mean, low, high, len(x), unscored, "bootstrap")
    below, above = wilson(mean, len(x), confidence)
    return Estimate(mean, min(low, below), max(high, above), len(x), unscored, "bootstrap+wilson")


def too_alike(values: NDArray[np.float64]) -> bool:
    """Return whether values in [0, 1], one a task, differ too little to be resampled: see `estimate`."""
    others = min(np.count_nonzero(values > 0), np.count_nonzero(values < 1))
    return bool(others < FEW or values.min() == values.max())


def paired_difference(
    candidate: Outcomes, against: Outcomes, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Difference:
    """Return the mean over common tasks of the candidate's mean minus the other's, scores in [0, 1].

    The interval is a percentile bootstrap over tasks; where fewer than `FEW` tasks differ it reaches at least as far
    as the hybrid of two Wilson intervals, of the share won and of the share lost (Newcombe 1998, method 10). The
    p-value is that of the paired sign-flip permutation test: exact up to 16 differing tasks, else by `resamples`
    random flips, (1 + hits) / (1 + flips).

    Args:
        candidate, against: Scores by task.
        confidence, resamples, seed: See `estimate`.
    """
    d, unpaired = differences(candidate, against)
    if not len(d):
        return Difference(None, None, None, None, 0, 0, unpaired, "none", "none", "no task was scored on both sides")
    differing = int(np.count_nonzero(d))
    mean = float(d.mean())
    low, high = _quantiles(resampled_means(d, resamples, seed), confidence)
    method = "bootstrap"
    if differing < FEW or d.min() == d.max():
        below, above = _hybrid(d, confidence)
        low, high, method = min(low, below), max(high, above), "bootstrap+wilson"
    p_value, p_method = sign_flip_p_value(d, resamples, seed)
    return Difference(mean, low, high, p_value, len(d), differing, unpaired, method, p_method)


def confidence_not_worse(candidate: Outcomes, incumbent: Outcomes, margin: float = 0.0) -> float | None:
    """Return the confidence that the candidate's mean > the incumbent's - margin: 1 - a one-sided p-value.

    The p-value is the larger of two. The first is of Student's paired t-test over tasks. It knows nothing of losses
    that are too rare to have been drawn, so the second is of an exact binomial test: the chance of so few losses
    where their rate is that of the wins plus the margin. A loss counts there as a share of a typical one, whose size is
    sum(l^2) / sum(l) over the tasks' losses l, with half an outright loss added to both sums.

    Args:
        candidate, incumbent: Scores by task, in [0, 1].
        margin: The loss that still counts as not worse, >= 0.

    Returns:
        In [0, 1]; None where fewer than two tasks were scored on both sides.
    """
    d, _ = differences(candidate, incumbent)
    n = len(d)
    if n < 2:
        return None
    above, spread = float(d.mean()) + margin, float(d.std(ddof=1))
    above = 0.0 if abs(above) < 1e-12 else above
    t = above / (spread / math.sqrt(n)) if spread > 0 else math.copysign(math.inf, above) if above else 0.0
    losses = -d[d < 0]
    size = (float((losses**2).sum()) + 0.5) / (float(losses.sum()) + 0.5)
    rate, count = (float(d[d > 0].sum()) / n + margin) / size, float(losses.sum()) / size
    # P(Binomial(n, rate) <= count)
    few = 1.0 if count >= n else incomplete_beta(n - count, count + 1, max(0.0, 1 - rate))
    # P(Student's t with n - 1 degrees of freedom >= |t|)
    tail = incomplete_beta((n - 1) / 2, 0.5, (n - 1) / (n - 1 + t * t)) / 2
    return 1 - max(tail if t >= 0 else 1 - tail, few)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), a and b > 0, x in [0, 1] (DLMF 8.17.8).

    In place of SciPy's, which takes 140 MB and which transformers imports at each start where it is installed.
    """
    from mpmath import hyp2f1

    other = x > (a + 1) / (a + b + 2)  # there the series converges slowly, and I_x(a, b) = 1 - I_(1-x)(b, a)
    if other:
        a, b, x = b, a, 1 - x
    share = 0.0
    if x > 0:
        scale = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        share = math.exp(scale) / a * float(hyp2f1(a + b, 1, a + 1, x))
    return 1 - share if other else share


def differences(candidate: Outcomes, against: Outcomes) -> tuple[NDArray[np.float64], int]:
    """Return the difference on each task scored on both sides, float [tasks], and how many others there are."""
    ours, theirs = task_means(candidate), task_means(against)
    common = sorted(ours.keys() & theirs.keys())
    unpaired = len(candidate.keys() | against.keys()) - len(common)
    d = np.array([ours[task] - theirs[task] for task in common], dtype=np.float64)
    d[np.abs(d) < 1e-12] = 0.0  # 1/3 + 2/3 of one side against 1 of the other
    return d, unpaired


def sign_flip_p_value(d: NDArray[np.float64], resamples: int = 10_000, seed: int = 0) -> tuple[float, str]:
    """Return the two-sided p-value of paired differences under random signs, and how it was found.

    Args:
        d: float [tasks], the paired differences; those that are 0 say nothing and change nothing.
        resamples: Random flips where there are too many for all.
        seed: Of the flips.
    """
    d = d[d != 0]
    if not len(d):
        return 1.0, "exact"
    seen = abs(float(d.sum())) - 1e-9
    if len(d) <= EXACT:
        flips = ((np.arange(2 ** len(d))[:, None] >> np.arange(len(d))) & 1) * 2.0 - 1.0
        return float(np.mean(np.abs(flips @ d) >= seen)), "exact"
    rng, hits, left = np.random.default_rng(seed), 0, resamples
    while left:
        n = min(left, max(1, _AT_ONCE // len(d)))
        flips = rng.integers(0, 2, size=(n, len(d))) * 2.0 - 1.0
        hits += int(np.count_nonzero(np.abs(flips @ d) >= seen))
        left -= n
    return (1 + hits) / (1 + resamples), "monte_carlo"


def resampled_means(x: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Return the means of `resamples` draws of len(x) tasks with replacement; float [resamples]."""
    rng = np.random.default_rng(seed)
    out = np.empty(resamples)
    step = max(1, _AT_ONCE // len(x))
    for start in range(0, resamples, step):
        end = min(resamples, start + step)
        out[start:end] = x[rng.integers(0, len(x), size=(end - start, len(x)))].mean(axis=1)
    return out


def wilson(share: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a share among n independent draws (Wilson 1927)."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (0.0 if share == 0 else max(0.0, middle - half)), (1.0 if share == 1 else min(1.0, middle + half))


def _hybrid(d: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    won, lost = float(d[d > 0].sum()) / len(d), float(-d[d < 0].sum()) / len(d)
    won_low, won_high = wilson(won, len(d), confidence)
    lost_low, lost_high = wilson(lost, len(d), confidence)
    mean = won - lost
    low = mean - math.hypot(won - won_low, lost_high - lost)
    high = mean + math.hypot(won_high - won, lost - lost_low)
    return max(-1.0, low), min(1.0, high)


def _quantiles(means: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
