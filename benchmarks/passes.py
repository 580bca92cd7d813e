"""One success among several attempts (pass@k): what fine-tuning, trees, preferences and GRPO do to it.

Run `python benchmarks/passes.py` (seconds): it reads the seeds that `arms.py` kept and plays nothing. pass@k of a task
is the unbiased estimate from all of its attempts (Chen et al., arXiv:2107.03374). Intervals draw seeds and tasks anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from _common import RESULTS, write_result
from _experiment import Seed, interval
from arms import calls, measured, tokens

from offline_agent.evaluation.report import pass_at_k

Chain = tuple[str, ...]
Contrast = tuple[str, Chain, Chain]
TUNED = "fine-tuning on plain attempts, over the start"
TREES = "trees over plain attempts, both fine-tuned"
PAIRS = "pairs in place of as many updates of fine-tuning"


def _rounds(collect: str, last: str, before: int = 2) -> Chain:
    return (collect, *(f"{collect}, all data",) * (before - 1), f"{collect}+{last}, all data")


_ATTEMPTS, _TREES, _PAIRS = _rounds("retries", "thrice"), _rounds("states", "thrice"), _rounds("states", "updates+dpo")
_LONGER, _MORE = _rounds("retries", "nine times"), _rounds("retries", "thrice", before=3)
_ONE = [(f"{name}, all data",) for name in ("retries+thrice", "states+thrice", "states+updates+dpo")]
_THREE: list[Contrast] = [(TUNED, _ATTEMPTS, ()), (TREES, _TREES, _ATTEMPTS), (PAIRS, _PAIRS, _TREES)]
_BOTH: list[Contrast] = [(TUNED, _ONE[0], ()), (TREES, _ONE[1], _ONE[0])]
_GRPO: Contrast = ("GRPO over the start", ("grpo",) * 4, ())
_FRESH: list[Contrast] = [
    (TUNED, _LONGER, ()),
    (TREES, _TREES, _LONGER),
    ("trees over plain attempts of as many tokens", _TREES, _MORE),
    (PAIRS, _PAIRS, _TREES),
]
KEPT: dict[str, tuple[str, list[Contrast]]] = {
    "arms_frozenlake_test_fresh": ("FrozenLake, 0.4 M weights", _FRESH),
    "arms_frozenlake_test": ("FrozenLake, 130 other maps", [*_THREE, _GRPO]),
    "arms_frozenlake-smollm2_validation": ("FrozenLake, SmolLM2-135M", _BOTH),
    "arms_countdown_validation": ("Countdown with four numbers, 0.9 M", _THREE),
    "arms_countdown-easy_validation": ("Countdown with three, 0.9 M", _THREE),
    "arms_countdown-easy-smollm2_validation": (
        "Countdown with three, SmolLM2-135M",
        [*_BOTH, (PAIRS, _ONE[2], _ONE[1])],
    ),
    "arms_shop_test": ("shop, 1 M", [*_THREE, _GRPO]),
    "arms_cookingworld_test": ("CookingWorld, 0.6 M", _THREE),
}
"""What stands for each folder of kept seeds, and its contrasts: title, rounds, rounds of the control."""


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
    for folder, (title, contrasts) in KEPT.items():
        seeds = [Seed(**json.loads(path.read_text())) for path in sorted((RESULTS / folder).glob("seed-*.json"))]
        split, most = folder.split("_")[2], seeds[0].settings["attempts"]
        for contrast, *chains in contrasts:
            row: dict[str, Any] = {"tasks and model": title, "contrast": contrast}
            for name, cost in (("calls", calls), ("tokens sampled", tokens)):
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
    write_result("passes", list(rows()), {"seeds": 3})
