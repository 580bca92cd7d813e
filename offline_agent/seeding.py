"""Seeds by name: the same names give the same seed on every machine, in any order of asking."""

from __future__ import annotations

import hashlib


def derive_seed(run: int, *names: object) -> int:
    """Return a seed in [0, 2**63) that depends on `run` and the sequence of names alone.

    Args:
        run: The run's seed.
        names: What the seed is for, e.g. `("task", task_id, node_key, sample)`. Compared by `str()`.
    """
    text = "\x1f".join([str(run), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1
