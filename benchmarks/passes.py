"""One success among several attempts (pass@k): what fine-tuning, trees, preferences and GRPO do to it.

Run `python benchmarks/passes.py` (seconds): it reads the seeds that `arms.py` kept and plays nothing. pass@k of a task
is the unbiased estimate from all of its attempts (Chen et al., arXiv:2107.03374). Intervals draw seeds and tasks anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from _common import RESULTS, write_result
from _experiment import Seed, interval
from _recipes import SUITES
from arms import calls, measured, tokens, updates

from offline_agent.evaluation.report import pass_at_k

Chain = tuple[str, ...]
Contrast = tuple[str, Chain, Chain]
TUNED = "fine-tuning on plain attempts, over the start"
TREES = "trees over plain attempts, both fine-tuned for as many epochs"
PAIRS = "pairs after less fine-tuning, over fine-tuning alone"


def _rounds(collect: str, last: str, before: int = 2) -> Chain:
    return (collect, *(f"{collect}, all data",) * (before - 1), f"{collect}+{last}, all data")


def _one(last: str) -> Chain:
    return (f"{last}, all data",)


_ATTEMPTS, _TREES, _PAIRS = _rounds("retries", "thrice"), _rounds("states", "thrice"), _rounds("states", "updates+dpo")
_LONGER, _MORE = _rounds("retries", "nine times"), _rounds("retries", "thrice", before=3)
_MORE_UPDATES, _STEP, _CRITICAL, _SOLVER = map(
    _one, ("states+updates+further", "states+updates+step", "states+updates+critical", "states+updates+solver")
)
_THREE: list[Contrast] = [(TUNED, _ATTEMPTS, ()), (TREES, _TREES, _ATTEMPTS), (PAIRS, _PAIRS, _TREES)]
_BOTH: list[Contrast] = [
    (TUNED, _one("retries+thrice"), ()),
    (TREES, _one("states+thrice"), _one("retries+thrice")),
]
_GRPO: Contrast = ("GRPO over the start", ("grpo",) * 4, ())
_FRESH: list[Contrast] = [
    *_THREE[:2],
    ("trees over plain attempts fine-tuned for three times their epochs", _TREES, _LONGER),
    ("trees over plain attempts of as many tokens, a round more", _TREES, _MORE),
    _THREE[2],
]
_LONG: list[Contrast] = [
    ("plain attempts, 20 epochs over 6", _one("retries+ten times"), _one("retries+thrice")),
    ("trees, 20 epochs over 6", _one("states+ten times"), _one("states+thrice")),
    ("trees over plain attempts, 20 epochs", _one("states+ten times"), _one("retries+ten times")),
    (PAIRS, _one("states+updates+dpo"), _one("states+ten times")),
    ("trees and pairs over plain attempts, 20 epochs", _one("states+updates+dpo"), _one("retries+ten times")),
]
_KIND: list[Contrast] = [
    *_BOTH,
    ("pairs of estimated values, over as much fine-tuning", _one("states+updates+estimated"), _one("states+thrice")),
    ("critical steps over estimated values", _CRITICAL, _one("states+updates+estimated")),
    ("the solver's actions over critical steps", _SOLVER, _CRITICAL),
    ("critical steps likely before, over all", _one("states+updates+likely"), _CRITICAL),
    ("attempts' pairs over as much fine-tuning", _one("retries+updates+estimated"), _one("retries+thrice")),
]
_FURTHER: list[Contrast] = [
    ("the run's step pairs, over as many further updates", _STEP, _MORE_UPDATES),
    ("critical steps over the run's step pairs", _CRITICAL, _STEP),
    ("the solver's actions over critical steps", _SOLVER, _CRITICAL),
    ("critical steps, over as many further updates", _CRITICAL, _MORE_UPDATES),
    ("the solver's actions, over as many further updates", _SOLVER, _MORE_UPDATES),
]
_KINDS: list[Contrast] = [
    ("further updates, over the model before", _MORE_UPDATES, _one("states+updates")),
    ("the run's step pairs, over the model before", _STEP, _one("states+updates")),
    *_FURTHER,
]
KEPT: list[tuple[str, str, str, list[Contrast]]] = [
    ("arms_frozenlake_test_fresh", "*", "FrozenLake, 650 maps, 0.4 M weights", _FRESH),
    ("arms_frozenlake_test", "*", "FrozenLake, 130 other maps", [*_THREE, _GRPO]),
    ("arms_frozenlake_validation_contrasts", "*", "FrozenLake, 300 validation maps, one round", _FURTHER),
    ("arms_frozenlake-smollm2_validation", "*", "FrozenLake, SmolLM2-135M", _BOTH),
    ("arms_frozenlake-smollm2_validation", "1", "FrozenLake, SmolLM2-135M, seed 1", _LONG),
    ("arms_frozenlake-smollm2_validation_kinds", "*", "FrozenLake, SmolLM2-135M, one round, 2 seeds", _KINDS),
    ("arms_frozenlake-smollm2_validation_kinds-float32", "0", "the same in float32, seed 0", [_KINDS[1], *_KINDS[3:5]]),
    ("arms_countdown_validation", "*", "Countdown with four numbers, 0.9 M", _THREE),
    ("arms_countdown_validation_contrasts", "*", "Countdown with four numbers, 0.9 M, one round", _KIND),
    ("arms_countdown-easy_validation", "*", "Countdown with three, 0.9 M", _THREE),
    (
        "arms_countdown-easy-smollm2_validation", "*", "Countdown with three, SmolLM2-135M",
        [*_BOTH, (PAIRS, _one("states+updates+dpo"), _one("states+thrice"))],
    ),
    ("arms_shop_test", "*", "shop, 1 M", [*_THREE, _GRPO]),
    ("arms_cookingworld_test", "*", "CookingWorld, start 68 %", _THREE),
    ("arms_cookingworld_test_own", "*", "CookingWorld, start 42 %", _THREE),
]  # fmt: skip
"""Folder of kept seeds, which of them, what stands for them, and contrasts: title, rounds, rounds of the control."""


def solved(seeds: Sequence[Seed], split: str, chain: Chain, k: int) -> Any:
    """Return pass@k [seed, task] of the model after these rounds, in [0, 1]."""
    attempts = seeds[0].settings["attempts"]
    share = np.vectorize(lambda mean: pass_at_k(attempts, round(mean * attempts), k))
    return share(measured(seeds, split, chain))


def _mean(cost: Any, seeds: Sequence[Seed], chain: Chain) -> str:
    found = [cost(seed, chain) for seed in seeds]
    return "–" if None in found else f"{np.mean(found):,.0f}"


def rows() -> Iterator[dict[str, Any]]:
    """Yield a row for each contrast."""
    for folder, which, title, contrasts in KEPT:
        paths = sorted((RESULTS / folder).glob(f"seed-{which}.json"))
        seeds = [Seed(**json.loads(path.read_text())) for path in paths]
        _, suite, split = folder.split("_")[:3]
        most = seeds[0].settings["attempts"]
        costs = {"calls": calls, "tokens sampled": tokens, "updates": partial(updates, SUITES[suite])}
        for contrast, *chains in contrasts:
            row: dict[str, Any] = {"tasks and model": title, "contrast": contrast}
            for name, cost in costs.items():
                row[name] = " → ".join(_mean(cost, seeds, chain) for chain in reversed(chains))
            row["k"] = most
            for k, name in ((1, "1"), (most, "k")):
                ours, theirs = (solved(seeds, split, chain, k) for chain in chains)
                low, high = interval(ours - theirs)
                row[f"pass@{name}"] = f"{theirs.mean():.1%} → {ours.mean():.1%}"
                gain = (ours - theirs).mean()
                row[f"gain of pass@{name}"] = f"{100 * gain:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
            yield row


if __name__ == "__main__":
    write_result("passes", list(rows()), {"seeds": "3, where no other is named"})
