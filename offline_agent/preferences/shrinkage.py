"""Shrinkage of the actions at one node towards their common mean, by as much as their own results suggest.

Of hundreds of comparisons of a tree the extreme ones become pairs. Where actions hardly differ these are noise, and
posteriors that know nothing of the other actions are too sure of them. Here the values at a node are draws from a
common Beta distribution around the node's mean; its concentration is unknown too, and is integrated out given the
results of all the node's actions (a hierarchical beta-binomial model: Gelman et al., Bayesian Data Analysis, 5.3;
Efron and Morris 1975 for the shrinkage).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, lgamma

from offline_agent.preferences.statistics import JEFFREYS, Evidence, Prior, posterior_mean, probability_above

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

    def value(self, evidence: Evidence, most: float = inf) -> float:
        """Return the posterior mean of a value.

        Args:
            evidence: The action's own results.
            most: Number of scores for which they count at most.
        """
        found = sum(weight * posterior_mean(evidence, prior, most) for weight, prior in self.parts)
        return min(1.0, max(0.0, found))


def node_prior(
    mean: float,
    actions: Sequence[Evidence],
    concentrations: Sequence[float] = CONCENTRATIONS,
) -> NodePrior:
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
    weights = [exp(one - top) for one in logs]
    kept = [(w, p) for w, p in zip(weights, priors, strict=True) if w >= _LEAST * sum(weights)]
    total = sum(weight for weight, _ in kept)
    return NodePrior(tuple((weight / total, prior) for weight, prior in kept))


def _log_likelihood(evidence: Evidence, prior: Prior) -> float:
    """Return the log of B(a + s, b + f) / B(a, b): the beta-binomial, without the factor that no prior changes."""
    a, b = prior
    return _log_beta(a + evidence.successes, b + evidence.failures) - _log_beta(a, b)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
