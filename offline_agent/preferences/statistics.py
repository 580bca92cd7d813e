"""Probability that one value is above another: Beta posteriors over rates, and point masses where a value is known.

Of hundreds of comparisons of a tree the extreme ones become pairs. Where actions hardly differ these are noise, and
posteriors that know nothing of the other actions are too sure of them. So the values at a node are draws from a
common Beta distribution around the node's mean; its concentration is unknown too, and is integrated out given the
results of all the node's actions (a hierarchical beta-binomial model: Gelman et al., Bayesian Data Analysis, 5.3;
Efron and Morris 1975 for the shrinkage).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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


CONCENTRATIONS = (0.0, 2.0, 8.0, 32.0, 256.0)
"""Scores that the common mean counts for, as a prior of each action, all equally likely beforehand.

0 leaves the actions independent; with 256 they are worth the same, but for a few hundredths.
"""
_LEAST = 1e-3  # share of the weights below which it is left out


@dataclass(frozen=True, slots=True)
class NodePrior:
    """The prior of each action's value at one node: a mixture of Beta distributions.

    Attributes:
        parts: (weight, Beta distribution) each; the weights sum to 1 and are those after all actions' results.
    """

    parts: tuple[tuple[float, Prior], ...]

    def above(self, better: Evidence, worse: Evidence) -> float:
        """Return P(Q_better > Q_worse), with half of the probability of a tie."""
        found = sum(weight * probability_above(better, worse, prior) for weight, prior in self.parts)
        return min(1.0, max(0.0, found))  # the weights sum to 1 but for a rounding error

    def value(self, evidence: Evidence, most: float = math.inf) -> float:
        """Return the posterior mean of a value.

        Args:
            evidence: The action's own results.
            most: Number of scores for which they count at most.
        """
        found = sum(weight * posterior_mean(evidence, prior, most) for weight, prior in self.parts)
        return min(1.0, max(0.0, found))


def node_prior(mean: float, actions: Sequence[Evidence], concentrations: Sequence[float] = CONCENTRATIONS) -> NodePrior:
    """Return the prior of the actions at a node.

    Under concentration m each value is Beta(a + mμ, b + m(1 − μ)), where μ is the node's mean and (a, b) is Jeffreys'
    prior. The weight of each m is in proportion to the beta-binomial likelihood of all actions' results. Values that
    are known exactly have no part in it: that some actions end the episode says nothing of the others.

    Args:
        mean: The node's mean value, in [0, 1].
        actions: The results of its actions.
        concentrations: The values of m, >= 0; (0,) leaves the actions independent.
    """
    priors = [JEFFREYS.towards(mean, m) for m in concentrations]
    known = [evidence for evidence in actions if evidence.known is None and evidence.count > 0]
    logs = [sum(_log_likelihood(evidence, prior) for evidence in known) for prior in priors]
    top = max(logs)
    weights = [math.exp(one - top) for one in logs]
    kept = [(w, p) for w, p in zip(weights, priors, strict=True) if w >= _LEAST * sum(weights)]
    total = sum(weight for weight, _ in kept)
    return NodePrior(tuple((weight / total, prior) for weight, prior in kept))


def _log_likelihood(evidence: Evidence, prior: Prior) -> float:
    """Return the log of B(a + s, b + f) / B(a, b): the beta-binomial, without the factor that no prior changes."""
    a, b = prior
    return _log_beta(a + evidence.successes, b + evidence.failures) - _log_beta(a, b)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
