"""Counts of the environments that are open at once, with their bound, and of resets, with their time."""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections import deque
from collections.abc import Iterator
from time import perf_counter

_SLOW = 0.5  # seconds of a reset from which resets are told
_LAST = 1000  # resets whose seconds are kept


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
        self.expect(0)

    @property
    def crowded(self) -> bool:
        """Whether so many are open that a tree keeps its last state alone; the others are restored by replay."""
        return self.open > max(0, self.most - self.reserved)

    def count(self, more: int) -> None:
        """Add to the number of open environments."""
        with self._lock:
            self.open += more
            self.peak = max(self.peak, self.open)

    def expect(self, resets: int) -> None:
        """Count resets anew; so many are expected, beside those that replays make."""
        self._wanted, self._made, self._seconds = resets, 0, deque[float](maxlen=_LAST)

    @contextlib.contextmanager
    def reset(self) -> Iterator[None]:
        """Measure a reset."""
        started = perf_counter()
        yield
        with self._lock:
            self._made += 1
            self._seconds.append(perf_counter() - started)

    def resets(self) -> str | None:
        """Return in words how many resets were made and how long they take; None where they take hardly any time."""
        with self._lock:
            made, median = self._made, statistics.median(self._seconds) if self._seconds else 0.0
        of = f" of {self._wanted:,}" if made <= self._wanted else ""
        return f"{made:,}{of}, median {median:.1f} s" if median >= _SLOW else None

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
