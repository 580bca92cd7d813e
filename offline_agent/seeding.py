"""Seeds by name: the same names give the same seed on every machine, whatever the order of the calls."""

from __future__ import annotations

import hashlib
from zlib import crc32


def derive_seed(run: int, *names: object) -> int:
    """Return a seed in [0, 2**63) that depends on `run` and the sequence of names alone.

    Args:
        run: The run's seed.
        names: The purpose of the seed, e.g. `("task", task_id, node_key, sample)`. Compared by `str()`.
    """
    text = "\x1f".join([str(run), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1


def mix(seed: int, index: int) -> int:
    """Return a seed in [0, 2**63) for the `index`-th draw under `seed`; SplitMix64 (Steele et al. 2014)."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (z ^ (z >> 31)) >> 1


def child_seed(seed: int, key: str) -> int:
    """Return the seed in [0, 2**63) of the child `key` of `seed`; fast, for millions of seeds.

    It takes the middle bits of a product, which depend on every bit of the key's CRC-32: two keys of one parent share a
    seed only if their CRCs are equal.
    """
    return ((seed ^ crc32(key.encode("utf-8", "surrogatepass"))) * 0xBF58476D1CE4E5B9 >> 32) & 0x7FFFFFFFFFFFFFFF


def draw_seed(seed: int, index: int) -> int:
    """Return the seed in [0, 2**63) of the `index`-th draw under `seed`, all different; draw 0 has `seed` itself."""
    return (seed + index * 0x9E3779B97F4A7C15) & 0x7FFFFFFFFFFFFFFF
