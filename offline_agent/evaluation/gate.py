"""The promotion gate: a candidate replaces the incumbent only when held-out success is not worse, with confidence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError
from offline_agent.evaluation.statistics import Difference, Outcomes, paired_difference, probability_not_worse
from offline_agent.store import read_table

MODE = "sampled"
"""The attempts that count: at the temperature the policy is used at."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gate says of one candidate.

    Attributes:
        passed: Whether it may replace the incumbent.
        probability: P(candidate's success > incumbent's - margin), in [0, 1]; None where no task could be compared.
        difference: The candidate's mean success minus the incumbent's, with interval and p-value.
        reason: One readable sentence.
    """

    passed: bool
    probability: float | None
    difference: Difference
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return it for the event log and summary.json."""
        return {
            "passed": self.passed,
            "probability_not_worse": self.probability,
            **self.difference.to_json(),
            "reason": self.reason,
        }


def decide(
    candidate: Outcomes,
    incumbent: Outcomes,
    *,
    confidence: float,
    margin: float,
    resamples: int = 10_000,
    seed: int = 0,
) -> Decision:
    """Return whether P(candidate's success > incumbent's - margin) >= confidence, by paired bootstrap over tasks.

    A task that has no scored attempt on one of the two sides is left out on both, and counted.

    Args:
        candidate, incumbent: By task: the success of each attempt as 0 or 1, None where it could not be scored.
        confidence: In [0.5, 1).
        margin: A loss of success that still counts as not worse, >= 0.
        resamples: Bootstrap resamples.
        seed: Of the resampling.
    """
    difference = paired_difference(candidate, incumbent, resamples=resamples, seed=seed)
    probability = probability_not_worse(candidate, incumbent, margin, resamples, seed)
    if probability is None:
        return Decision(False, None, difference, "refused: no task was scored for both, so nothing can be said")
    passed = probability >= confidence
    sign = ">=" if passed else "<"
    reason = (
        f"{'passed' if passed else 'refused'}: P(success not worse by {100 * margin:g} points) = {probability:.3f} "
        f"{sign} {confidence:g} on {difference.tasks} tasks"
    )
    if difference.unpaired_tasks:
        reason += f", {difference.unpaired_tasks} unscored left out"
    return Decision(passed, probability, difference, reason)


def best(decisions: Mapping[str, Decision]) -> str | None:
    """Return the candidate to promote: of those that passed the one that gained most, the last of equals; or None.

    So a preference training that undoes what fine-tuning gained is refused, and the fine-tuned model promoted.

    Args:
        decisions: By candidate, in the order in which they were trained.
    """
    passed = [name for name, decision in decisions.items() if decision.passed]
    return max(reversed(passed), key=lambda name: decisions[name].difference.mean or 0.0, default=None)


def outcomes(run_dir: Path) -> dict[str, list[float | None]]:
    """Return the successes of the evaluated policy's sampled attempts, by task and in order of attempt.

    Args:
        run_dir: A run directory of `evaluate`.

    Raises:
        DataError: There are no attempts, they cannot be read, or they are on the test split, at which a gate never
            looks: what is chosen by a split is not measured by it.
    """
    files = sorted((run_dir / "attempts").glob("*.parquet"))
    try:
        split = json.loads((run_dir / "manifest.json").read_bytes())["config"]["tasks"]["split"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{run_dir}: no run directory of evaluate ({type(error).__name__}: {error})") from error
    if split == "test":
        raise DataError(f"{run_dir}: evaluated on the test split; a gate looks at tasks.split=validation only")
    found = _collect(row for file in files for row in read_table(file))
    if not found:
        raise DataError(f"{run_dir}/attempts: no {MODE} attempt of the candidate; evaluate it with attempts=1 or more")
    return found


def _collect(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    attempts: dict[str, dict[int, float | None]] = {}
    for row in rows:
        if row["policy"] == "candidate" and row["mode"] == MODE:
            success = row["success"]
            attempts.setdefault(row["task_id"], {})[row["attempt"]] = None if success is None else float(success)
    return {task: [by_number[number] for number in sorted(by_number)] for task, by_number in attempts.items()}
