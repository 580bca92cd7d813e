"""A count of the environments that are open at once, and its bound."""

from __future__ import annotations

import threading


class Census:
    """Counts open environments of one class; thread-safe.

    Args:
        most: Number of environments that may be open at once.

    Attributes:
        open: Number of those that are open, copies included.
        peak: The largest number so far.
        most: See above.
        reserved: Part of `most` that states kept for later must leave free, for the environments in use.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = self.peak = 0
        self.reserved = 0
        self._lock = threading.Lock()

    @property
    def crowded(self) -> bool:
        """Whether so many are open that a tree keeps its last state alone; the others are restored by replay."""
        return self.open > max(0, self.most - self.reserved)

    def count(self, more: int) -> None:
        """Add to the number of open environments."""
        with self._lock:
            self.open += more
            self.peak = max(self.peak, self.open)

    def trees(self, most: int, workers: int, one_thread: bool) -> int:
        """Return how many trees may be searched at once, and reserve what they need at least.

        A tree keeps one environment, and uses one more while one thread makes its calls; else `workers` are used.

        Args:
            most: Number of trees that are asked for.
            workers: Number of calls made at once.
            one_thread: See `EnvSpec.one_thread`.
        """
        trees = max(1, min(most, self.most // 3 if one_thread else (self.most - workers) // 2))
        self.reserved = trees + (min(trees, workers) if one_thread else workers)
        return trees
