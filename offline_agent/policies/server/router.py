"""Which of many servers answers a request: without sockets, threads or a clock of its own.

Histories of one tree go to one server, which has them in its prefix cache: rendezvous hashing of the tree's name
(Thaler & Ravishankar 1998). A server that has more than `bound` times the mean of the requests in flight is passed over
(bounded loads; Mirrokni et al., arXiv:1608.01350); one that answers slowly counts as a part of a server. A server that
fails is out, twice as long each time, until somebody who has looked at it says that it is back.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

SLOW = 2.0  # a server that takes this many times the median is sent fewer requests
MEMORY = 0.2  # weight of the newest answer in the mean of a server's seconds
_MASK = 0xFFFFFFFFFFFFFFFF


@dataclass(slots=True)
class _ServerState:
    """What is known of one server.

    Attributes:
        hash: Of its name.
        in_flight: Requests that it is answering.
        seconds: Running mean of what a good answer took; None before the first.
        falls: Ejections and failed checks since its last good answer.
        ejections: Times it was taken out.
        until: When it may be looked at again; None = it is in.
    """

    hash: int
    in_flight: int = 0
    seconds: float | None = None
    falls: int = 0
    ejections: int = 0
    until: float | None = None


class Router:
    """Chooses a server for each request. Not thread-safe: what happens between `route` and `begin` is the caller's.

    Args:
        names: The servers'; each once.
        bound: How many times the mean of the requests in flight one server may have (rounded up), > 1: near 1 = evenly
            loaded, large = always the server that has the history cached.
        most: Most requests in flight at one server; None = any number.
        backoff: Seconds that a server is left alone after its first failure; doubled with every failure in a row.
        longest: Most seconds that it is left alone.
        clock: Seconds, never running backwards.

    Attributes:
        names: The servers.
        changes: How often one was taken out or back: while it stays, so does every history's home.

    Raises:
        ValueError: No name, one that is there twice, or a number out of range.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        bound: float = 1.25,
        most: int | None = None,
        backoff: float = 1.0,
        longest: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not names or len(set(names)) != len(names):
            raise ValueError(f"names must be there, and each once; got {list(names)}")
        if bound <= 1 or backoff <= 0 or (most is not None and most < 1):
            raise ValueError(f"bound > 1, backoff > 0 and most >= 1; got {bound}, {backoff}, {most}")
        self.names = tuple(names)
        self._bound = bound
        self._most = most
        self._backoff = backoff
        self._longest = max(longest, backoff)
        self._clock = clock
        self._states = {name: _ServerState(_hash(name)) for name in names}
        self._order = lru_cache(4096)(self._ordered)
        self.changes = 0

    def route(self, key: str, avoid: Collection[str] = ()) -> str | None:
        """Return the server for a request; None where every one is out or has `most` requests.

        Args:
            key: Requests with the same key share a prefix, e.g. the task's id.
            avoid: Servers to leave out where there are others, e.g. those that this request failed on.
        """
        live = [name for name in self._wanted(avoid) if not self._full(name)]
        if not live:
            return None
        weights = self._weights(live)
        mean = (sum(self._states[name].in_flight for name in live) + 1) / sum(weights.values())
        order = [name for name in self._order(key) if name in weights]
        if self._fits(order[0], self._bound * mean * weights[order[0]]):
            return order[0]
        # Not merely the least loaded: the second in the order is a tree's second home, and has what it was sent before.
        # One fits: if all had their shares of in flight + 1 requests or more, there would be more than are in flight.
        return next(name for name in order if self._fits(name, mean * weights[name]))

    def home(self, key: str, avoid: Collection[str] = ()) -> str | None:
        """Return the server that has a request's history, if any has, whatever else it does; None = all are out.

        Args:
            key, avoid: As `route`'s.
        """
        live = self._wanted(avoid)
        return next((name for name in self._order(key) if name in live), None)

    def room(self) -> list[str]:
        """Return the servers that are in and have fewer than `most` requests."""
        return [name for name in self.live() if not self._full(name)]

    def begin(self, name: str) -> int:
        """Note that a request went to a server; return what `end` wants to know of when it began."""
        state = self._states[name]
        state.in_flight += 1
        return state.ejections

    def end(self, name: str, ok: bool, seconds: float | None = None, began: int | None = None) -> bool:
        """Note that a request came back; one that failed takes the server out.

        Args:
            name: The server.
            ok: Whether it answered as a sound server does.
            seconds: How long it took; None = says nothing of its speed.
            began: What `begin` returned: a failure of a request from before the server was last taken out is old news.

        Returns:
            Whether the server was taken out by this.
        """
        state = self._states[name]
        if not state.in_flight:
            raise ValueError(f"{name} has no request in flight")
        state.in_flight -= 1
        fresh = began is None or began == state.ejections
        if ok:
            if seconds is not None:
                before = state.seconds
                state.seconds = seconds if before is None else (1 - MEMORY) * before + MEMORY * seconds
            if fresh and state.until is None:
                state.falls = 0
            return False
        return fresh and state.until is None and self.eject(name)

    def eject(self, name: str) -> bool:
        """Take a server out, or leave one that is out alone for longer; return whether it was in."""
        state = self._states[name]
        was_in = state.until is None
        state.ejections += was_in
        self.changes += was_in
        wait = min(self._longest, self._backoff * 2.0 ** min(state.falls, 60))
        state.falls += 1
        state.until = self._clock() + wait
        return was_in

    def restore(self, name: str) -> None:
        """Take a server back that was looked at and found sound; its old speed is forgotten."""
        state = self._states[name]
        if state.until is not None:
            state.until, state.seconds = None, None
            self.changes += 1

    def live(self) -> list[str]:
        """Return the servers that are in."""
        return [name for name in self.names if self._states[name].until is None]

    def due(self) -> list[str]:
        """Return the servers that are out and may be looked at."""
        return [name for name in self.names if self.wait(name) == 0 and self._states[name].until is not None]

    def wait(self, name: str) -> float:
        """Return the seconds until a server may be looked at; 0 where it may, or is in."""
        until = self._states[name].until
        return 0.0 if until is None else max(0.0, until - self._clock())

    def in_flight(self, name: str) -> int:
        """Return how many requests a server is answering."""
        return self._states[name].in_flight

    def ejections(self, name: str) -> int:
        """Return how often a server was taken out."""
        return self._states[name].ejections

    def seconds(self, name: str) -> float | None:
        """Return the running mean of what a server's good answers took; None before the first."""
        return self._states[name].seconds

    def _wanted(self, avoid: Collection[str]) -> list[str]:
        live = self.live()
        return [name for name in live if name not in avoid] or live

    def _ordered(self, key: str) -> tuple[str, ...]:
        number = _hash(key)
        return tuple(sorted(self.names, key=lambda name: _score(number, self._states[name].hash), reverse=True))

    def _full(self, name: str) -> bool:
        return self._most is not None and self._states[name].in_flight >= self._most

    def _weights(self, live: Sequence[str]) -> dict[str, float]:
        """Return each server's share of the requests: 1, and of a slow one the usual seconds over its own."""
        known = {name: seconds for name in live if (seconds := self._states[name].seconds) is not None}
        usual = median(known.values()) if known else 0.0
        return {name: usual / known[name] if usual and known.get(name, 0.0) > SLOW * usual else 1.0 for name in live}

    def _fits(self, name: str, limit: float) -> bool:
        return self._states[name].in_flight + 1 <= math.ceil(limit - 1e-9)  # what rounding adds is no request


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _score(key: int, name: int) -> int:
    """Return a number that depends on both; SplitMix64's finaliser (Steele et al. 2014)."""
    z = (key ^ name) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
