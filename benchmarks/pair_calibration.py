"""Are step pairs as often right as they say? Confidence and gaps against the truth, with and without shrinkage.

Run `python benchmarks/pair_calibration.py`. Tasks whose action values under the policy are known exactly: `choices`, as
in `pair_accuracy.py`; `equal`, the same where after 70 to 90 % of the histories all actions come to the same; `errand`,
a search of drawers where most mistakes cost a call or two. And the shop, where the truth is 64 fresh rollouts of each
side. A pair is right if its chosen action has the higher value under the policy; a tie is wrong.

A pair of two ends, both known exactly, is no matter of confidence: the shares, confidences and gaps are of the others.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from _common import write_result
from _mdp import Choices, Errand, search, state_after
from pair_accuracy import SHOP, Truth, interval, looked_up, shop_trees

from offline_agent.policies.scripted import NoisyPolicy
from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.search.tree import SearchTree

RULES = {"independent": StepPairs(concentrations=(0.0,)), "shrunk": StepPairs()}
TIE = 1e-9  # values are sums of floats
SHARES = (0.7, 0.75, 0.8, 0.85, 0.9)

Trees = Sequence[tuple[SearchTree, Truth]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=400, help="tasks of each kind at 16 simulations")
    parser.add_argument("--shop-tasks", type=int, default=12)
    parser.add_argument("--simulations", type=int, nargs="+", default=[16, 32, 64], help="at n, 16/n of the tasks")
    parser.add_argument("--rollouts", type=int, default=64, help="fresh rollouts per side for the shop's truth")
    options = parser.parse_args()
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for simulations in options.simulations:
        for name, trees in _all(options, simulations):
            rows += [_row(name, simulations, rule, trees) for rule in RULES]
            print(*rows[-2:], sep="\n", flush=True)
    facts = {
        "right": "of pairs with an estimated side; a tie is wrong",
        "conservative": all(row["right"] is None or row["high"] >= row["confidence"] for row in rows[1::2]),
        "seconds": round(time.perf_counter() - started),
    }
    write_result("pair_calibration", rows, facts)


def _all(options: argparse.Namespace, simulations: int) -> Iterator[tuple[str, Trees]]:
    n = max(1, options.tasks * 16 // simulations)
    yield "choices", _exact([Choices(seed, False) for seed in range(n)], simulations)
    yield "equal", _exact([Choices(seed, False, SHARES[seed % len(SHARES)]) for seed in range(n)], simulations)
    yield "errand", _exact([Errand(seed) for seed in range(n)], simulations)
    policy = NoisyPolicy(SHOP.demonstrate, 0.5)
    yield "shop, noise 0.5", shop_trees(SHOP, policy, options.shop_tasks, simulations, options.rollouts)
    policy.close()


def _exact(tasks: Sequence[Choices | Errand], simulations: int) -> Trees:
    out: list[tuple[SearchTree, Truth]] = []
    for task in tasks:
        tree = search(task, simulations=simulations)
        out.append((tree, looked_up({edge.id: task.value(state_after(task, edge)) for edge in tree.edges})))
    return out


def _row(name: str, simulations: int, rule: str, trees: Trees) -> dict[str, Any]:
    pairs, right, counts = 0, defaultdict(int), defaultdict(int)
    sure, stored, true = [], [], []
    for number, (tree, truth) in enumerate(trees):
        for pair in RULES[rule].mine(tree)[0]:
            better, worse = tree.edges[pair.chosen_edge or 0], tree.edges[pair.rejected_edge or 0]
            pairs += 1
            if better.exact and worse.exact:
                continue
            gap = truth(better) - truth(worse)
            right[number] += gap > TIE
            counts[number] += 1
            sure.append(pair.confidence or 0.0)
            stored.append(pair.q_chosen - pair.q_rejected)
            true.append(gap)
    low, high = interval(np.array([right[i] for i in counts]), np.array([counts[i] for i in counts]))
    return {
        "trees": name,
        "tasks": len(trees),
        "simulations": simulations,
        "rule": rule,
        "pairs/task": round(pairs / len(trees), 3),
        "estimated": len(sure),
        "right": _mean([gap > TIE for gap in true]),
        "low": round(low, 3),
        "high": round(high, 3),
        "confidence": _mean(sure),
        "stored gap": _mean(stored),
        "true gap": _mean(true),
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(float(np.mean(values)), 3) if values else None


if __name__ == "__main__":
    main()
