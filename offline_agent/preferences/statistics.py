"""Probability that one value is above another: Beta posteriors over rates, and point masses where a value is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_GRID = 2048


class Prior(NamedTuple):
    """A Beta prior of a value in [0, 1].

    Attributes:
        successes: The first parameter, > 0.
        failures: The second, > 0.
    """

    successes: float
    failures: float

    def towards(self, mean: float, weight: float) -> Prior:
        """Return the prior with `weight` further scores that have this mean."""
        return Prior(self.successes + weight * mean, self.failures + weight * (1.0 - mean))


JEFFREYS = Prior(0.5, 0.5)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The knowledge of one value in [0, 1].

    Attributes:
        successes: Sum of the scores, >= 0; fractional with partial credit.
        failures: Sum of their complements, >= 0.
        known: The value itself where it is known exactly; None where it is estimated from the sums.
    """

    successes: float
    failures: float
    known: float | None = None

    @property
    def count(self) -> float:
        """Number of scores behind the sums."""
        return self.successes + self.failures

    @property
    def mean(self) -> float | None:
        """The known value, else the mean score; None where there is neither."""
        if self.known is not None:
            return self.known
        return self.successes / self.count if self.count > 0 else None


def probability_above(better: Evidence, worse: Evidence, prior: Prior = JEFFREYS) -> float:
    """Return P(Q_better > Q_worse), the two independent given the prior, by their Beta posteriors.

    The densities are summed on an even grid in θ where q = sin²θ: Beta(½, ½) is flat there, so nothing is singular
    (absolute error below 2e-5). A value known exactly is a point mass; two equal point masses give ½.

    Args:
        better: Evidence on the value thought to be the higher.
        worse: Evidence on the other.
        prior: The prior of both.
    """
    if better.known is not None and worse.known is not None:
        return 1.0 if better.known > worse.known else 0.5 if better.known == worse.known else 0.0
    if better.known is not None:
        return _below(worse, better.known, prior)
    if worse.known is not None:
        return 1.0 - _below(better, worse.known, prior)
    size = _size(max(better.count, worse.count) + sum(prior))
    upper = _masses(better.successes, better.failures, prior, size)
    lower = _masses(worse.successes, worse.failures, prior, size)
    under = np.cumsum(lower) - lower / 2
    return min(1.0, max(0.0, float(upper @ under)))


def posterior_mean(evidence: Evidence, prior: Prior = JEFFREYS, most: float = math.inf) -> float:
    """Return the known value, else the posterior mean.

    Args:
        evidence: The successes and failures.
        prior: The prior.
        most: Number of scores, > 0, for which the evidence counts at most; its mean stays as it is.
    """
    if evidence.known is not None:
        return evidence.known
    count = min(evidence.count, most)
    return ((evidence.mean or 0.0) * count + prior.successes) / (count + sum(prior))


def certainty(better: float, worse: float, certain: bool) -> float:
    """Return P(Q_better > Q_worse) of two end states judged once each.

    Args:
        better: Score of the better end state.
        worse: Score of the other.
        certain: Whether one verdict settles an end state.
    """
    known = (better, worse) if certain else (None, None)
    return probability_above(Evidence(better, 1 - better, known[0]), Evidence(worse, 1 - worse, known[1]))


def _below(evidence: Evidence, value: float, prior: Prior) -> float:
    """P(Q < value), linear inside the grid cell that holds the value."""
    size = _size(evidence.count + sum(prior))
    masses = _masses(evidence.successes, evidence.failures, prior, size)
    position = np.arcsin(np.sqrt(min(1.0, max(0.0, value)))) / (np.pi / 2) * size
    whole = min(size, int(position))
    part = float(masses[whole]) * (position - whole) if whole < size else 0.0
    return min(1.0, max(0.0, float(masses[:whole].sum()) + part))


def _size(count: float) -> int:
    # The posterior's width in θ is 1 / (2 √count): keep some dozens of cells inside it.
    size = _GRID
    while size < 64 * count**0.5:
        size *= 2
    return size


@lru_cache(maxsize=1024)
def _masses(successes: float, failures: float, prior: Prior, size: int) -> NDArray[np.float64]:
    """Probability of each of `size` even cells of θ in [0, π/2]; float [size], sums to 1."""
    theta = (np.arange(size) + 0.5) * (np.pi / 2 / size)
    # With q = sin²θ the density q^(a-1) (1-q)^(b-1) dq becomes sin^(2a-1) θ cos^(2b-1) θ dθ.
    a, b = successes + prior.successes, failures + prior.failures
    log = (2 * a - 1) * np.log(np.sin(theta)) + (2 * b - 1) * np.log(np.cos(theta))
    weights = np.exp(log - log.max())
    masses: NDArray[np.float64] = weights / weights.sum()
    masses.setflags(write=False)
    return masses
