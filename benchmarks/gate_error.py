"""Error rates of the gate of `iterate`: how often it promotes worse and better candidates, in simulated runs.

Run `python benchmarks/gate_error.py`. A run has five iterations of two candidates, 50 held-out tasks and 4 attempts at
each. The incumbent solves a task with a chance drawn from 0.2 + 0.6 Beta(2, 2); a candidate's chance is that one,
plus the scenario's change, plus up to 10 points more or fewer, drawn for each task. What is promoted is the next
incumbent. The candidates here are judged by these rules:

- now: `evaluation.gate`, with tasks of its own for each iteration and the incumbent evaluated beside its candidates;
- now, no other tasks: the same where the split has 50 tasks in all, so that only the attempts are new each time;
- one look: the rule that was replaced. P(candidate's mean > incumbent's - margin) by paired bootstrap over tasks at the
  confidence asked for, each time on the same tasks; the winner's own evaluation is the next incumbent's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import write_result

from offline_agent.evaluation.gate import GateSection, Look, best, decide, needed_confidence
from offline_agent.evaluation.statistics import FEW, Outcomes, differences, resampled_means, wilson

CONFIDENCE, MARGIN, TASKS, ATTEMPTS, ITERATIONS = 0.9, 0.02, 50, 4, 5

Chances = Any  # float [tasks]: how often each task is solved


@dataclass(frozen=True)
class Scenario:
    """The change of the candidates against the incumbent.

    Attributes:
        name: In the table.
        changes: Of each candidate: what it solves more often than the incumbent.
        wrong: Whether the promotion of a candidate is an error, for each.
        begin: Chances of the first model, from a generator and a number of tasks.
        change: Chances of a candidate, from the incumbent's, its change and a generator; None = as in the module.
        unscored: Share of the candidates' failures that nobody could score.
    """

    name: str
    changes: tuple[float, ...]
    wrong: tuple[bool, ...]
    begin: Callable[[np.random.Generator, int], Chances] = lambda rng, n: 0.2 + 0.6 * rng.beta(2, 2, n)
    change: Callable[[Chances, float, np.random.Generator], Chances] | None = None
    unscored: float = 0.0


def rarely_lost(chances: Chances, change: float, rng: np.random.Generator) -> Chances:
    """Return chances of a candidate that loses a share of the tasks outright, and is alike on the others."""
    return np.where(rng.random(len(chances)) < -change, 0.0, chances)


def less_often(chances: Chances, change: float, _: np.random.Generator) -> Chances:
    """Return chances in proportion to the incumbent's."""
    return chances * (1 + change)


SCENARIOS = (
    Scenario("both 3 points worse", (-0.03, -0.03), (True, True)),
    Scenario("both 2 points worse: the margin itself", (-0.02, -0.02), (True, True)),
    Scenario("one 10 better, one 3 worse", (0.1, -0.03), (False, True)),
    Scenario("always solved; both lose 3 % of the tasks", (-0.03, -0.03), (True, True), lambda _, n: np.ones(n),
             rarely_lost),
    Scenario("both solve 0.8 times as often, 70 % of failures unscored", (-0.2, -0.2), (True, True),
             change=less_often, unscored=0.7),
    Scenario("no change", (0.0, 0.0), (False, False)),
    Scenario("one 10 better, one no better", (0.1, 0.0), (False, False)),
    Scenario("both 10 points better", (0.1, 0.1), (False, False)),
)  # fmt: skip


def played(chances: Chances, unscored: float, rng: np.random.Generator) -> dict[str, list[float | None]]:
    """Return attempts at tasks, by task."""
    won = rng.random((len(chances), ATTEMPTS)) < chances[:, None]
    lost = ~won & (rng.random(won.shape) < unscored)
    return {
        str(task): [None if hidden else float(success) for success, hidden in zip(*rows, strict=True)]
        for task, rows in enumerate(zip(won.tolist(), lost.tolist(), strict=True))
    }


def one_look(candidate: Outcomes, incumbent: Outcomes, resamples: int, seed: int) -> tuple[bool, float]:
    """Return whether a candidate passes by the rule that was replaced, and what it gained."""
    d, _ = differences(candidate, incumbent)
    gained = float(d.mean()) if len(d) else 0.0
    if np.count_nonzero(d) < FEW or d.min() == d.max():
        d = np.concatenate([d, [1.0, -1.0]])
    means = resampled_means(d, resamples, seed)
    tie = np.isclose(means, -MARGIN, rtol=0, atol=1e-12)
    return float(np.mean((means > -MARGIN) & ~tie) + np.mean(tie) / 2) >= CONFIDENCE, gained


def run_before(scenario: Scenario, rng: np.random.Generator) -> list[int | None]:
    """Return which candidate each iteration of a run promotes by the rule that was replaced."""
    chances = scenario.begin(rng, TASKS)
    incumbent, promoted = played(chances, 0.0, rng), list[int | None]()
    for _ in range(ITERATIONS):
        candidates = _candidates(scenario, chances, rng)
        evaluated = [played(each, scenario.unscored, rng) for each in candidates]
        verdicts = [one_look(each, incumbent, 1000, int(rng.integers(1 << 31))) for each in evaluated]
        passed = [number for number, (passes, _) in enumerate(verdicts) if passes]
        promoted.append(max(passed, key=lambda number: verdicts[number][1], default=None))
        if promoted[-1] is not None:
            chances, incumbent = candidates[promoted[-1]], evaluated[promoted[-1]]
    return promoted


def run_now(scenario: Scenario, rng: np.random.Generator, others: bool = True) -> list[int | None]:
    """Return which candidate each iteration of a run promotes by the gate as it is, on other tasks each time or not."""
    looks, promoted = list[Look](), list[int | None]()
    chances = scenario.begin(rng, TASKS)
    for _ in range(ITERATIONS):
        if others:
            chances = scenario.begin(rng, TASKS)  # on which the incumbent is what it has become
            for number in filter(lambda number: number is not None, promoted):
                chances = _candidates(scenario, chances, rng)[number]
        candidates = _candidates(scenario, chances, rng)
        incumbent = played(chances, 0.0, rng)
        needed = needed_confidence(CONFIDENCE, looks, len(candidates))
        decisions = {
            str(number): decide(
                played(each, scenario.unscored, rng), incumbent, GateSection(margin=MARGIN), needed=needed,
                resamples=100,
            )
            for number, each in enumerate(candidates)
        }
        looks.append(Look(len(candidates), sum(decision.passed for decision in decisions.values())))
        winner = best(decisions)
        promoted.append(None if winner is None else int(winner))
        chances = chances if winner is None else candidates[int(winner)]
    return promoted


def _candidates(scenario: Scenario, chances: Chances, rng: np.random.Generator) -> list[Chances]:
    change = scenario.change or _shifted
    return [change(chances, each, rng) for each in scenario.changes]


def _shifted(chances: Chances, change: float, rng: np.random.Generator) -> Chances:
    return np.clip(chances + change + rng.uniform(-0.1, 0.1, len(chances)), 0, 1)


RULES: Mapping[str, Callable[[Scenario, np.random.Generator], list[int | None]]] = {
    "one look": run_before,
    "now": run_now,
    "now, no other tasks": partial(run_now, others=False),
}


def measure(scenario: Scenario, runs: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return a row for each rule: shares of runs, with Wilson's intervals."""
    rows = []
    for name, rule in RULES.items():
        found = [rule(scenario, np.random.default_rng([seed, run])) for run in range(runs)]
        wrong = np.mean([any(n is not None and scenario.wrong[n] for n in each) for each in found])
        rows.append(
            {
                "candidates": scenario.name,
                "rule": name,
                "first iteration promotes": _share(np.mean([each[0] is not None for each in found]), runs),
                "run promotes": _share(np.mean([any(n is not None for n in each) for each in found]), runs),
                "run promotes a worse one": _share(wrong, runs) if any(scenario.wrong) else None,
                "promotions a run": round(float(np.mean([sum(n is not None for n in each) for each in found])), 2),
            }
        )
    return rows


def _share(share: Any, runs: int) -> str:
    low, high = wilson(float(share), runs)
    return f"{share:.1%} ({low:.1%} to {high:.1%})"


def main() -> None:
    """Simulate and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=600, help="simulated runs of each scenario and rule")
    parser.add_argument("--out", type=Path, default=None, help="another file for the figures")
    arguments = parser.parse_args()
    started = time.perf_counter()
    rows = [row for scenario in SCENARIOS for row in measure(scenario, arguments.runs)]
    errors = [float(row["run promotes a worse one"].split("%")[0]) for row in rows
              if row["rule"] != "one look" and row["run promotes a worse one"]]  # fmt: skip
    facts = {
        "goal": f"a run promotes a worse one in at most {1 - CONFIDENCE:.0%} of runs; 10 points better pass mostly",
        "met": max(errors) <= 100 * (1 - CONFIDENCE),
        "gate.confidence": CONFIDENCE, "gate.margin": MARGIN, "tasks": TASKS, "attempts": ATTEMPTS,
        "iterations": ITERATIONS, "runs": arguments.runs, "seconds": round(time.perf_counter() - started),
    }  # fmt: skip
    write_result("gate_error", rows, facts, arguments.out)


if __name__ == "__main__":
    main()
