"""Several evaluations on one panel of tasks: success, corrected paired tests, noise floor, tasks that are needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist

from offline_agent.errors import ConfigError
from offline_agent.evaluation.statistics import (
    Difference,
    Estimate,
    Outcomes,
    differences,
    mean_over_tasks,
    paired_difference,
    task_means,
)

POWER = 0.8
"""Probability with which a true difference of the given size shall be found."""
SIZES = (0.10, 0.05, 0.02)
"""True differences for which the tasks needed are told in every case."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One evaluation on the panel.

    Attributes:
        name: Its name.
        success: Mean over the panel's tasks, with its interval.
        attempts: Number of scored attempts on the panel.
        noise: Half width of the 95 % interval of the difference between two evaluations of this same policy, on these
            tasks and with as many attempts; None where no task has two scored attempts, so that it is not known.
        noise_at_most: An upper bound of it, where it is not known; see `noise_bound`.
    """

    name: str
    success: Estimate
    attempts: int
    noise: float | None
    noise_at_most: float | None


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two evaluations compared.

    Attributes:
        one, other: Their names; the difference is one - other.
        difference: With interval and p-value, over the panel's tasks.
        p_holm: The p-value corrected for the number of comparisons (Holm 1979); None as the p-value is.
        tasks_needed: Tasks that tell a true difference of this size apart with probability `POWER`, at the error of
            Bonferroni's correction for as many comparisons; None where the difference is 0.
        detectable: The true difference that the panel's tasks tell apart like that.
        spread: Standard deviation of the tasks' differences.
        assumed: Whether the tasks showed no spread, so that `independent_spread` stands for it.
    """

    one: str
    other: str
    difference: Difference
    p_holm: float | None
    tasks_needed: int | None
    detectable: float
    spread: float
    assumed: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """The comparison.

    Attributes:
        tasks: Tasks that every evaluation has a scored attempt at.
        left_out: Number of the other tasks.
        entries: The evaluations, in the order given.
        contrasts: Every two of them.
        plan: (true difference, tasks that tell it apart) for each of `SIZES`, by the contrast with the largest spread.
    """

    tasks: tuple[str, ...]
    left_out: int
    entries: tuple[Entry, ...]
    contrasts: tuple[Contrast, ...]
    plan: tuple[tuple[float, int], ...]


def compare(
    evaluations: Mapping[str, Outcomes], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Panel:
    """Return the comparison of two or more evaluations over the tasks that all of them scored.

    Args:
        evaluations: By name: the success of each attempt by task, None where it was not scored.
        confidence: Of the intervals; the tests' error is 1 - confidence.
        resamples, seed: Of the resampling.

    Raises:
        ConfigError: Fewer than two evaluations, or no common task.
    """
    if len(evaluations) < 2:
        raise ConfigError(f"name two evaluations or more, got {len(evaluations)}")
    scored = [set(task_means(outcomes)) for outcomes in evaluations.values()]
    tasks = sorted(set.intersection(*scored))
    if not tasks:
        raise ConfigError(
            f"{', '.join(evaluations)}: they have no task in common that all of them scored; evaluate them on the same "
            "tasks (tasks.split, tasks.n, tasks.offset)"
        )
    on_panel = {name: {task: outcomes[task] for task in tasks} for name, outcomes in evaluations.items()}
    entries = [
        Entry(
            name,
            mean_over_tasks(outcomes, confidence, resamples, seed),
            sum(score is not None for scores in outcomes.values() for score in scores),
            noise := noise_floor(outcomes),
            noise_bound(outcomes) if noise is None else None,
        )
        for name, outcomes in on_panel.items()
    ]
    pairs = list(combinations(on_panel, 2))
    found = [paired_difference(on_panel[a], on_panel[b], confidence, resamples, seed) for a, b in pairs]
    corrected = holm([one.p_value for one in found])
    alpha = (1 - confidence) / len(pairs)
    contrasts = []
    for (a, b), difference, p_holm in zip(pairs, found, corrected, strict=True):
        measured = _spread(on_panel[a], on_panel[b])
        spread = measured or independent_spread(on_panel[a], on_panel[b])
        needed = tasks_needed(difference.mean, spread, alpha) if difference.mean else None
        contrasts.append(
            Contrast(a, b, difference, p_holm, needed, detectable(len(tasks), spread, alpha), spread, not measured)
        )
    everything = set().union(*(outcomes.keys() for outcomes in evaluations.values()))
    widest = max(contrast.spread for contrast in contrasts)
    plan = tuple((size, tasks_needed(size, widest, alpha)) for size in SIZES)
    return Panel(tuple(tasks), len(everything) - len(tasks), tuple(entries), tuple(contrasts), plan)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number by Holm's step-down procedure (Holm 1979); None stays None."""
    known = sorted((p, at) for at, p in enumerate(p_values) if p is not None)
    out: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, at) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        out[at] = largest
    return out


def noise_floor(outcomes: Outcomes) -> float | None:
    """Return how far two evaluations of the same policy may differ by the luck of sampling alone.

    1.96 sqrt(2 mean_t(s^2 / m_t) / n): n tasks with m_t attempts each, s^2 the mean over tasks of the unbiased variance
    of a task's attempts. Tasks with a single attempt are taken to vary like the others.

    Args:
        outcomes: Success of each attempt by task; None = unscored.

    Returns:
        Half width of the 95 % interval of the difference; None where no task has two scored attempts.
    """
    variances, attempts = [], []
    for scores in outcomes.values():
        known = [float(score) for score in scores if score is not None]
        if not known:
            continue
        attempts.append(len(known))
        if len(known) > 1:
            mean = math.fsum(known) / len(known)
            variances.append(math.fsum((score - mean) ** 2 for score in known) / (len(known) - 1))
    if not variances:
        return None
    typical = math.fsum(variances) / len(variances)
    mean_of_tasks = typical * math.fsum(1 / m for m in attempts) / len(attempts)
    return 1.96 * math.sqrt(2 * mean_of_tasks / len(attempts))


def noise_bound(outcomes: Outcomes) -> float | None:
    """Return a bound of the noise floor from the attempts at different tasks, where no task has two.

    1.96 sqrt(2 s^2 / n), s^2 the unbiased variance of the n tasks' means: by the law of total variance it holds the
    variance between tasks on top of that of a task's attempts, so the true floor is lower, the more the tasks differ.

    Args:
        outcomes: Success of each attempt by task; None = unscored.

    Returns:
        Half width of the 95 % interval of the difference, at most; None for fewer than two tasks.
    """
    means = list(task_means(outcomes).values())
    if len(means) < 2:
        return None
    mean = math.fsum(means) / len(means)
    variance = math.fsum((value - mean) ** 2 for value in means) / (len(means) - 1)
    return 1.96 * math.sqrt(2 * variance / len(means))


def independent_spread(one: Outcomes, other: Outcomes) -> float:
    """Return the standard deviation of a task's difference if both evaluations solved tasks independently.

    sqrt(p (1 - p) + q (1 - q)), p and q the means over n tasks, each as (n mean + 1) / (n + 2) so that neither is 0 or
    1. Evaluations on the same tasks mostly succeed on the same ones; then the true spread is smaller.
    """
    variance = 0.0
    for outcomes in (one, other):
        means = list(task_means(outcomes).values())
        share = (math.fsum(means) + 1) / (len(means) + 2)
        variance += share * (1 - share)
    return math.sqrt(variance)


def tasks_needed(difference: float, spread: float, alpha: float) -> int:
    """Return the tasks that tell a difference apart: ((z_{1-alpha/2} + z_power) spread / difference)^2, rounded up.

    Args:
        difference: True difference of the means; not 0.
        spread: Standard deviation of the tasks' differences; above 0.
        alpha: Two-sided error of the test.
    """
    return max(2, math.ceil((_z(alpha) * spread / abs(difference)) ** 2))


def detectable(tasks: int, spread: float, alpha: float) -> float:
    """Return the difference that so many tasks tell apart; arguments as `tasks_needed`."""
    return _z(alpha) * spread / math.sqrt(tasks)


def _z(alpha: float) -> float:
    return NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(POWER)


def _spread(one: Outcomes, other: Outcomes) -> float | None:
    values, _ = differences(one, other)
    return float(values.std(ddof=1)) if len(values) > 1 else None
