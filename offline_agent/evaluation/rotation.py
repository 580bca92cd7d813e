"""The rotation of held-out tasks: each look at them gets others, as long as there are others."""

from __future__ import annotations

import numpy as np

from offline_agent.seeding import derive_seed


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
