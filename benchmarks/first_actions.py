"""Is the first differing action of a pair's chosen side the better one, and is the gap that is stored the true one?

Run `python benchmarks/first_actions.py`. On the random choice tasks of `pair_accuracy.py`, whose action values under
the policy are known exactly. A trajectory pair claims that the whole rest of its chosen side succeeded and that of the
rejected one failed; what its `confidence` says of the first differing action is compared with how often that is so.

Two tables: `first_actions.json`, by kind and confidence; `first_actions_gaps.json`, the gaps of step pairs by what they
are taken from.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from _common import write_result
from _mdp import Choices, search, state_after

from offline_agent.preferences.pairs.comparison import with_confidence
from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.preferences.pairs.trajectory import TrajectoryPairs
from offline_agent.preferences.records import PreferencePair
from offline_agent.search.tree import Edge, SearchTree

WORSE = 0.1
BANDS = ((0.0, 0.5), (0.5, 0.9), (0.9, 1.0))

Gaps = dict[str, list[float]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200, help="random choice tasks of each kind")
    parser.add_argument("--simulations", type=int, nargs="+", default=[16, 32, 64])
    options = parser.parse_args()
    actions: list[dict[str, Any]] = []
    gaps: list[dict[str, Any]] = []
    for partial in (False, True):
        name = "choices, partial credit" if partial else "choices"
        for simulations in options.simulations:
            found: dict[str, list[tuple[float, float]]] = {"step": [], "trajectory": []}
            of_steps: Gaps = {}
            for seed in range(options.tasks):
                _look(Choices(seed, partial), simulations, found, of_steps)
            if simulations == options.simulations[-1]:
                actions += _rows(f"{name}, {options.tasks} tasks", found)
            true = float(np.mean(of_steps.pop("true")))
            row = {"trees": name, "simulations": simulations, "true gap": round(true, 3)}
            gaps.append(row | {of: round(float(np.mean(values)) - true, 3) for of, values in of_steps.items()})
    facts = {"simulations": options.simulations[-1], "worse": f"the true value is lower by more than {WORSE:g}"}
    write_result("first_actions", actions, facts)
    told = "how much larger than the true gap the mean gap is; pairs of two known ends are left out"
    write_result("first_actions_gaps", gaps, {"columns": told})


def _look(task: Choices, simulations: int, found: dict[str, list[tuple[float, float]]], gaps: Gaps) -> None:
    """Add the (confidence, true gap) of each pair of a tree, by kind, and the gaps of its step pairs."""
    tree, rules = search(task, simulations=simulations), StepPairs()
    compared = rules.compare(tree)
    for pair in (*rules.mine(tree, compared)[0], *TrajectoryPairs().mine(tree)[0]):
        pair = with_confidence(pair, tree, compared)
        better, worse = _edges(tree, pair)
        true = task.value(state_after(task, better)) - task.value(state_after(task, worse))
        assert pair.confidence is not None
        found[pair.kind].append((pair.confidence, true))
        if pair.kind == "step" and not (better.exact and worse.exact):
            gaps.setdefault("true", []).append(true)
            gaps.setdefault("means of the rollouts", []).append((better.value or 0.0) - (worse.value or 0.0))
            opinions = [compared.side(edge).opinion.mean or 0.0 for edge in (better, worse)]
            gaps.setdefault("policy-weighted values", []).append(opinions[0] - opinions[1])
            gaps.setdefault("stored", []).append(pair.q_chosen - pair.q_rejected)


def _edges(tree: SearchTree, pair: PreferencePair) -> tuple[Edge, Edge]:
    assert pair.chosen_edge is not None and pair.rejected_edge is not None
    return tree.edges[pair.chosen_edge], tree.edges[pair.rejected_edge]


def _rows(trees: str, found: dict[str, list[tuple[float, float]]]) -> Iterable[dict[str, Any]]:
    for kind, pairs in found.items():
        yield _row(trees, kind, "any", pairs)
        for low, high in BANDS if kind == "trajectory" else ():
            within = [(sure, true) for sure, true in pairs if low <= sure < high or sure == high == 1.0]
            yield _row(trees, kind, f"{low:g} to {high:g}", within)


def _row(trees: str, kind: str, confidence: str, pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    n = max(1, len(pairs))
    return {
        "trees": trees,
        "kind": kind,
        "confidence": confidence,
        "pairs": len(pairs),
        "mean confidence": round(sum(sure for sure, _ in pairs) / n, 3),
        "first action better": round(sum(true > 0 for _, true in pairs) / n, 3),
        "at least as good": round(sum(true >= 0 for _, true in pairs) / n, 3),
        f"worse by more than {WORSE:g}": round(sum(true < -WORSE for _, true in pairs) / n, 3),
    }


if __name__ == "__main__":
    main()
