"""Figures of attempts: rates with intervals for each mode, and two policies compared on the same tasks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from offline_agent.evaluation import statistics
from offline_agent.evaluation.statistics import Outcomes
from offline_agent.records import POLICY_CUTS
from offline_agent.rollouts.attempts import Attempt

FAULTS = {
    "invalid call": "answered with an error message that says what is wrong; the episode goes on",
    "max_steps": "the attempt is a failure (success false, reward 0), counted as cut by max_steps",
    "token limit": "a turn that never ends ends the attempt, a failure likewise, counted as cut by tokens",
    "context length": "a history that is too long for the policy ends the attempt, likewise, cut by context",
    "time-out or fault of the environment": "ends the attempt, which is unscored; it is not played again",
    "fault of the policy": "ends the attempt, which is unscored; an outage stops the run, which can be gone on with",
    "unscored attempts": "are left out of every mean and counted; success_if_unscored_failed takes them for failures",
}


def by_mode(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Return the attempts by mode, in the order in which modes come."""
    out: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        out.setdefault(attempt.mode, []).append(attempt)
    return out


def outcomes(attempts: Iterable[Attempt], value: Callable[[Attempt], float | None]) -> Outcomes:
    """Return a value of every attempt by task; None where it has none."""
    out: dict[str, list[float | None]] = {}
    for attempt in attempts:
        out.setdefault(attempt.task.task_id, []).append(value(attempt))
    return out


def successes(attempts: Iterable[Attempt]) -> Outcomes:
    """Return 1.0 or 0.0 for each attempt by task; None where it is unscored."""
    return outcomes(attempts, lambda a: None if a.success is None else float(a.success))


def rewards(attempts: Iterable[Attempt]) -> Outcomes:
    """Return the reward in [0, 1] of each attempt by task; None where it is unscored."""
    return outcomes(attempts, lambda a: a.reward)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of P(at least one of k attempts succeeds): 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.

    Args:
        n: Attempts that were scored.
        c: Successes among them.
        k: From 1 to n.

    Raises:
        ValueError: Not 1 <= k <= n or not 0 <= c <= n.
    """
    _check_counts(n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of P(all of k attempts succeed): C(c, k) / C(n, k); arguments as `pass_at_k`.

    Yao et al. 2024, "tau-bench", section 3.
    """
    _check_counts(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _check_counts(n: int, c: int, k: int) -> None:
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"got n={n}, c={c}, k={k}; allowed: 1 <= k <= n and 0 <= c <= n")


def pass_rates(
    outcomes: Outcomes, k: int, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[statistics.Estimate, statistics.Estimate]:
    """Return pass@k and pass^k, each the mean over the tasks with at least k scored attempts.

    Args:
        outcomes: Successes as 1 or True, failures as 0 or False.
        k: Number of attempts.
        confidence, resamples, seed: See `statistics.estimate`.
    """
    any_of, all_of = [], []
    for scores in outcomes.values():
        scored = [bool(score) for score in scores if score is not None]
        if len(scored) >= k:
            any_of.append(pass_at_k(len(scored), sum(scored), k))
            all_of.append(pass_hat_k(len(scored), sum(scored), k))
    left_out = len(outcomes) - len(any_of)
    return (
        statistics.estimate(any_of, left_out, confidence, resamples, seed),
        statistics.estimate(all_of, left_out, confidence, resamples, seed),
    )


def figures(
    attempts: Sequence[Attempt], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> dict[str, Any]:
    """Return the figures of one mode's attempts as JSON.

    Args:
        attempts: At least one.
        confidence: Of the intervals.
        resamples, seed: Of the bootstrap over tasks.

    Returns:
        `success` and `reward` with intervals; `pass_at` and `pass_hat` by k, likewise; `end_score` (the environment's
        own score of the last state, also where the attempt was cut); means over attempts of `steps`; rates per call of
        invalid, refused and repeated calls, None without any call; counts of attempts cut and unscored; `truncated`,
        the attempts that a limit of the policy's own cut, with `cut_rates` by kind; `tokens`.
    """
    how = (confidence, resamples, seed)
    won = successes(attempts)
    at_worst = {task: [score or 0.0 for score in scores] for task, scores in won.items()}
    calls = sum(attempt.calls for attempt in attempts)
    cut = Counter(attempt.cut_by for attempt in attempts if attempt.cut_by is not None)
    unscored = sum(attempt.success is None for attempt in attempts)
    solved = [attempt for attempt in attempts if attempt.success]
    success = statistics.mean_over_tasks(won, *how)
    pass_at, pass_hat = {}, {}
    for k in _powers(max(map(len, won.values()))):
        any_of, all_of = pass_rates(won, k, *how)
        pass_at[str(k)], pass_hat[str(k)] = any_of.to_json(), all_of.to_json()
    return {
        "tasks": len(won),
        "attempts": len(attempts),
        "success": success.to_json(),
        "success_if_unscored_failed": _mean(list(statistics.task_means(at_worst).values())),
        "reward": statistics.mean_over_tasks(rewards(attempts), *how).to_json(),
        "end_score": _mean(list(statistics.task_means(outcomes(attempts, lambda a: a.end_score)).values())),
        "pass_at": pass_at,
        "pass_hat": pass_hat,
        "steps": _mean([len(attempt.steps) for attempt in attempts]),
        "steps_of_successes": _mean([len(attempt.steps) for attempt in solved]),
        "invalid_call_rate": _share(sum(attempt.invalid_calls for attempt in attempts), calls),
        "refused_call_rate": _share(sum(attempt.refused_calls for attempt in attempts), calls),
        "repeated_call_rate": _share(sum(attempt.repeated_calls for attempt in attempts), calls),
        "truncated": sum(cut[kind] for kind in POLICY_CUTS),
        "truncated_rate": sum(cut[kind] for kind in POLICY_CUTS) / len(attempts),
        "cut_rates": {kind: cut[kind] / len(attempts) for kind in POLICY_CUTS},
        "cut_by": dict(sorted(cut.items())),
        "unscored": unscored,
        "unscored_tasks": success.unscored_tasks,
        "tool_calls": sum(attempt.tool_calls for attempt in attempts),
        "tokens": {
            "generated": sum(attempt.generated for attempt in attempts),
            "prefilled": sum(attempt.prefilled for attempt in attempts),
            "generated_per_attempt": sum(attempt.generated for attempt in attempts) / len(attempts),
        },
    }


def results(attempts: Sequence[Attempt]) -> tuple[Outcomes, Outcomes]:
    """Return successes and rewards by task."""
    return successes(attempts), rewards(attempts)


def compare(
    candidate: tuple[Outcomes, Outcomes],
    against: tuple[Outcomes, Outcomes],
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the candidate's success minus the other's over the tasks both tried: see `statistics.paired_difference`.

    Beside it stand both means over those tasks, the difference of the rewards, and the confidence that it is not worse.

    Args:
        candidate, against: Successes and rewards by task; see `results`.
        confidence, resamples, seed: See `statistics.estimate`.
    """
    ours, theirs = statistics.task_means(candidate[0]), statistics.task_means(against[0])
    common = sorted(ours.keys() & theirs.keys())
    return {
        **statistics.paired_difference(candidate[0], against[0], confidence, resamples, seed).to_json(),
        "candidate": _mean([ours[task] for task in common]),
        "against": _mean([theirs[task] for task in common]),
        "confidence_not_worse": statistics.confidence_not_worse(candidate[0], against[0]),
        "reward": statistics.paired_difference(candidate[1], against[1], confidence, resamples, seed).to_json(),
    }


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number by Holm's step-down procedure (Holm 1979); None stays None."""
    known = sorted((p, at) for at, p in enumerate(p_values) if p is not None)
    out: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, at) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        out[at] = largest
    return out


def verifiers(attempts: Iterable[Attempt]) -> list[dict[str, Any]]:
    """Return the judges (of the state at the cut, where an attempt was cut): name, version, number; most first."""
    verdicts = (attempt.verdict.to_json() for attempt in attempts if attempt.end_score is not None)
    judged = (verdict["evidence"].get("state_at_the_cut", verdict) for verdict in verdicts)
    seen = Counter((verdict["verifier"], verdict["version"]) for verdict in judged)
    return [{"verifier": name, "version": version, "attempts": n} for (name, version), n in seen.most_common()]


def _powers(most: int) -> list[int]:
    """Return 1, 2, 4, … up to `most`, which comes last."""
    out = [1]
    while out[-1] * 2 < most:
        out.append(out[-1] * 2)
    return out if out[-1] == most else [*out, most]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
