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
from _experiment import Seed, interval, matrix

from offline_agent.evaluation.report import pass_at_k

START = "warm"
RETRIES, STATES = ("retries", "retries, all data", "{}, all data"), ("states", "states, all data", "{}, all data")
_ATTEMPTS = [rounds.format("retries+thrice") for rounds in RETRIES]
_LONGER = [rounds.format("retries+nine times") for rounds in RETRIES]
_TREES = [rounds.format("states+thrice") for rounds in STATES]
_PAIRS = [rounds.format("states+updates+dpo") for rounds in STATES]
_ONE = (["retries+thrice, all data"], ["states+thrice, all data"], ["states+updates+dpo, all data"])
TUNED, TREES, PAIRS, ONLINE = (
    "fine-tuning on plain attempts, over the start", "trees over plain attempts, both fine-tuned",
    "pairs in place of as many updates of fine-tuning", "GRPO over the start",
)  # fmt: skip

Contrast = tuple[str, list[str], list[str]]
_THREE: tuple[Contrast, ...] = (
    (TUNED, _ATTEMPTS, [START]), (TREES, _TREES, _ATTEMPTS), (PAIRS, _PAIRS, _TREES),
)  # fmt: skip
_BOTH: tuple[Contrast, ...] = ((TUNED, _ONE[0], [START]), (TREES, _ONE[1], _ONE[0]))
_GRPO: Contrast = (ONLINE, ["grpo"] * 4, [START])
KEPT: dict[str, tuple[str, tuple[Contrast, ...]]] = {
    "arms_frozenlake_test_fresh": (
        "FrozenLake, 0.4 M weights",
        ((TUNED, _LONGER, [START]), (TREES, _TREES, _LONGER), (PAIRS, _PAIRS, _TREES)),
    ),
    "arms_frozenlake_test": ("FrozenLake, 130 other maps", (*_THREE, _GRPO)),
    "arms_frozenlake-smollm2_validation": ("FrozenLake, SmolLM2-135M", _BOTH),
    "arms_countdown_validation": ("Countdown with four numbers, 0.9 M", _THREE),
    "arms_countdown-easy_validation": ("Countdown with three, 0.9 M", _THREE),
    "arms_countdown-easy-smollm2_validation": (
        "Countdown with three, SmolLM2-135M", (*_BOTH, (PAIRS, _ONE[2], _ONE[1])),
    ),
    "arms_shop_test": ("shop, 1 M", (*_THREE, _GRPO)),
    "arms_cookingworld_test": ("CookingWorld, 0.6 M", _THREE),
}  # fmt: skip
"""What stands for each folder of kept seeds, and its contrasts: title, rounds, rounds of the control."""


def solved(seeds: Sequence[Seed], split: str, rounds: Sequence[str], k: int) -> Any:
    """Return pass@k [seed, task] of the model after these rounds, in [0, 1]."""
    name = f"{split}-{'.'.join(rounds)}-test".replace(", ", "_").replace(" ", "_")
    attempts = seeds[0].settings["attempts"]
    share = np.vectorize(lambda mean: pass_at_k(attempts, round(mean * attempts), k))
    return share(matrix(seeds, name, "sampled"))


def rows() -> Iterator[dict[str, Any]]:
    """Yield a row for each contrast."""
    for folder, (title, contrasts) in KEPT.items():
        seeds = [Seed(**json.loads(path.read_text())) for path in sorted((RESULTS / folder).glob("seed-*.json"))]
        split, most = folder.split("_")[2], seeds[0].settings["attempts"]
        for contrast, rounds, control in contrasts:
            row: dict[str, Any] = {"tasks and model": title, "contrast": contrast, "k": most}
            for k, name in ((1, "1"), (most, "k")):
                ours, theirs = (solved(seeds, split, one, k) for one in (rounds, control))
                low, high = interval(ours - theirs)
                row[f"pass@{name}"] = f"{theirs.mean():.1%} → {ours.mean():.1%}"
                gain = (ours - theirs).mean()
                row[f"gain of pass@{name}"] = f"{100 * gain:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
            yield row


if __name__ == "__main__":
    write_result("passes", list(rows()), {"seeds": 3})
