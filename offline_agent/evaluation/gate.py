"""The promotion gate: a candidate replaces the incumbent only when held-out success is not worse, with confidence.

A run looks more than once, at several candidates each time. The confidence asked for is that of the whole run: the
chance that it promotes anything that is worse by more than the margin is at most 1 - confidence. So each look gets a
part of that error (`needed_confidence`), and has tasks (`rotated`) and attempts of its own on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline_agent.errors import DataError
from offline_agent.evaluation.settings import GateSection
from offline_agent.evaluation.statistics import (
    Difference,
    Outcomes,
    confidence_not_worse,
    paired_difference,
    recorded,
    sign_flip_p_value,
)
from offline_agent.seeding import derive_seed
from offline_agent.store.manifest import read_manifest
from offline_agent.store.tables import read_table

MODE = "sampled"
"""The attempts that count: at the temperature the policy is used at."""


@dataclass(frozen=True, slots=True)
class Look:
    """The outcome of one look.

    Attributes:
        candidates: Number of candidates that were tested.
        passed: Number of those that passed.
    """

    candidates: int
    passed: int


def needed_confidence(confidence: float, earlier: Sequence[Look], candidates: int) -> float:
    """Return the confidence that each candidate of the next look must reach.

    Look k = 0, 1, … gets 1 / ((k + 1) (k + 2)) of the error 1 - confidence: a half, a sixth, a twelfth, …; all looks
    together get no more than the whole, however many follow. A look divides its error evenly among its candidates. The
    part of a candidate that passed goes on to the next look: where it passed rightly nothing was risked. This is the
    online fallback procedure (Tian and Ramdas 2021, "Online control of the familywise error rate").

    Args:
        confidence: Of the whole run, in [0.5, 1).
        earlier: The looks before, oldest first.
        candidates: Number of candidates of the next look, >= 1.
    """
    share = 0.0
    for number, look in enumerate(earlier):
        share = (share + _share(number)) * look.passed / look.candidates
    return 1 - (1 - confidence) * (share + _share(len(earlier))) / candidates


def _share(number: int) -> float:
    return 1 / ((number + 1) * (number + 2))


@dataclass(frozen=True, slots=True)
class Unscored:
    """Attempts without a score on both sides.

    Attributes:
        candidate, incumbent: Share of their attempts, the mean over tasks.
        p_value: Two-sided, of the difference, by flipping the signs of the tasks' differences.
    """

    candidate: float
    incumbent: float
    p_value: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The gate's decision on one candidate.

    Attributes:
        passed: Whether it may replace the incumbent.
        confidence: That its success is not worse by more than the margin, in [0, 1]; None where too few tasks could be
            compared.
        needed: The confidence that it had to reach.
        difference: The candidate's mean success minus the incumbent's, with interval and p-value.
        unscored: Attempts without a score.
        reason: One readable sentence.
    """

    passed: bool
    confidence: float | None
    needed: float
    difference: Difference
    unscored: Unscored
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return it for the event log and summary.json."""
        return {
            "passed": self.passed,
            "confidence_not_worse": self.confidence,
            "confidence_needed": self.needed,
            **self.difference.to_json(),
            "unscored": asdict(self.unscored),
            "reason": self.reason,
        }


def decide(
    candidate: Outcomes,
    incumbent: Outcomes,
    gate: GateSection,
    *,
    needed: float | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> Decision:
    """Return whether the candidate's success > the incumbent's - margin, with confidence, on the same tasks.

    It must be so in two ways: with unscored attempts left out, and with them as failures on both sides; see
    `statistics.confidence_not_worse` for the test. A task that has no scored attempt on one of the two sides is left
    out on both, and counted. Where the sides differ in their shares of unscored attempts beyond chance the candidate
    is refused: what is left of the attempts then says nothing of the rest.

    Args:
        candidate, incumbent: By task: the success of each attempt as 0 or 1, None where it could not be scored.
        gate: The keys.
        needed: The confidence that this candidate must reach, in (0, 1); see `needed_confidence`. None = the run's.
        resamples: Of the difference's interval, and of p-values that cannot be exact.
        seed: Of the resampling.
    """
    confidence, margin = gate.confidence if needed is None else needed, gate.margin
    difference = paired_difference(candidate, incumbent, resamples=resamples, seed=seed)
    shares = _unscored(candidate, incumbent, resamples, seed)
    counted = [
        confidence_not_worse(candidate, incumbent, margin),
        confidence_not_worse(_as_failures(candidate), _as_failures(incumbent), margin),
    ]
    reached = [one for one in counted if one is not None]
    if len(reached) < len(counted):
        reason = "refused: fewer than 2 tasks were scored for both, so nothing can be said"
        return Decision(False, None, confidence, difference, shares, reason)
    lower = min(reached)
    passed = lower >= confidence
    how = ", unscored attempts as failures" if reached[1] < reached[0] else ""
    told = (
        f"confidence {lower:.4f} {'>=' if passed else '<'} {confidence:.4f} that success is not worse by "
        f"{100 * margin:g} points{how}, on {difference.tasks} tasks"
    )
    if difference.unpaired_tasks:
        told += f", {difference.unpaired_tasks} unscored left out"
    if shares.p_value < gate.unscored:
        passed = False
        told = (
            f"{shares.candidate:.1%} of its attempts are unscored, {shares.incumbent:.1%} of the incumbent's, more "
            f"than chance makes differ (p = {shares.p_value:.2g}); see quarantine.jsonl of both evaluations; {told}"
        )
    reason = f"{'passed' if passed else 'refused'}: {told}"
    return Decision(passed, lower, confidence, difference, shares, reason)


def _as_failures(outcomes: Outcomes) -> Outcomes:
    return {task: [score or 0.0 for score in scores] for task, scores in outcomes.items()}


def _unscored(candidate: Outcomes, incumbent: Outcomes, resamples: int, seed: int) -> Unscored:
    tasks = sorted(task for task in candidate.keys() & incumbent.keys() if candidate[task] and incumbent[task])
    ours, theirs = (
        np.array([sum(score is None for score in side[task]) / len(side[task]) for task in tasks])
        for side in (candidate, incumbent)
    )
    if not tasks:
        return Unscored(0.0, 0.0, 1.0)
    p_value, _ = sign_flip_p_value(ours - theirs, resamples, seed)
    return Unscored(float(ours.mean()), float(theirs.mean()), p_value)


def best(decisions: Mapping[str, Decision]) -> str | None:
    """Return the candidate to promote: of those that passed the one that gained most, the last of equals; or None.

    So a preference training that undoes what fine-tuning gained is refused, and the fine-tuned model promoted.

    Args:
        decisions: By candidate, in the order in which they were trained.
    """
    passed = [name for name, decision in decisions.items() if decision.passed]
    return max(reversed(passed), key=lambda name: decisions[name].difference.mean or 0.0, default=None)


def outcomes(run_dir: Path) -> dict[str, list[float | None]]:
    """Return the successes of the evaluated policy's sampled attempts, by task.

    Args:
        run_dir: A run directory of `evaluate`.

    Raises:
        DataError: There are no attempts, they cannot be read, or they are on the test split, at which a gate never
            looks: what is chosen by a split is not measured by it.
    """
    files = sorted((run_dir / "attempts").glob("*.parquet"))
    try:
        split = read_manifest(run_dir)["config"]["tasks"]["split"]
    except (DataError, KeyError, TypeError) as error:
        raise DataError(f"{run_dir}: no run directory of evaluate ({type(error).__name__}: {error})") from error
    if split == "test":
        raise DataError(f"{run_dir}: evaluated on the test split; a gate looks at tasks.split=validation only")
    rows = (row for file in files for row in read_table(file))
    found = recorded((row for row in rows if row["policy"] == "candidate" and row["mode"] == MODE), "success")
    if not found:
        raise DataError(f"{run_dir}/attempts: no {MODE} attempt of the candidate; evaluate it with attempts=1 or more")
    return found


def rotated(size: int, n: int, look: int, seed: int) -> list[int]:
    """Return the numbers of the tasks of a look, ascending.

    The tasks are shuffled and dealt out in hands of n; when fewer than n are left all are shuffled again. So looks have
    no task in common until the tasks are used up, and a look's tasks do not depend on how many looks follow.

    Args:
        size: Number of tasks there are, >= 1.
        n: Number of tasks of a look, >= 1; all where there are not so many.
        look: Number of the look, from 0.
        seed: Of the shuffling.
    """
    n = min(n, size)
    deal, hand = divmod(look, size // n)
    order = np.random.default_rng(derive_seed(seed, "held_out", deal)).permutation(size)
    return sorted(map(int, order[hand * n : (hand + 1) * n]))
