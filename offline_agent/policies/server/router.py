"""Router of requests over servers: rendezvous hashing with bounded loads; no sockets and no threads.

Histories of one tree go to one server, which has them in its prefix cache: rendezvous hashing of the tree's name
(Thaler & Ravishankar 1998). A server with more than `bound` times the mean of the requests in flight is skipped
(bounded loads; Mirrokni et al., arXiv:1608.01350), so a slow one gets fewer. A server that fails is out, twice as long
each time, until a check has found that it works again.

Where all servers are full, a freed server would take the oldest request, and no tree would stay with the server that
has it in its prefix cache. So it takes the first of the next few requests whose home it is, else the oldest one.
"""

from __future__ import annotations

import bisect
import itertools
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from offline_agent.errors import ConfigError
from offline_agent.seeding import derive_seed

AHEAD = 4  # per server: number of requests looked at, and the most times that a request can be overtaken


@dataclass(slots=True)
class ServerState:
    """State of one server.

    Attributes:
        in_flight: Number of requests that it is answering.
        falls: Ejections and failed checks since its last good answer.
        ejections: Number of times it was taken out.
        until: Time from which it may be checked again; None = it is in.
    """

    in_flight: int = 0
    falls: int = 0
    ejections: int = 0
    until: float | None = None


class Router:
    """Chooses a server for each request. Not thread-safe: the caller holds a lock from `route` to `begin`.

    Args:
        names: Distinct names of the servers.
        bound: Most requests in flight at one server, as a multiple (> 1) of the mean, rounded up: near 1 = even load,
            large = always the server that has the history cached.
        most: Most requests in flight at one server; None = any number.
        backoff: Seconds until a server is checked after its first failure; doubled with every failure in a row.
        longest: Upper limit of that time, in seconds.
        clock: A monotonic clock, in seconds.

    Attributes:
        names: The servers.
        states: Of each, by its name.
        changes: Number of times a server was taken out or back; between two changes every home stays the same.

    Raises:
        ConfigError: A number is out of range.
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
        if bound <= 1 or backoff <= 0 or (most is not None and most < 1):
            raise ConfigError(
                f"policy: got bound={bound}, backoff={backoff}, concurrency={most}; allowed: bound above 1, backoff "
                "above 0, concurrency from 1"
            )
        self.names = tuple(names)
        self._bound = bound
        self._most = most
        self._backoff = backoff
        self._longest = max(longest, backoff)
        self._clock = clock
        self.states = {name: ServerState() for name in names}
        self._order = lru_cache(4096)(self._ordered)
        self.changes = 0

    def route(self, key: str, avoid: Collection[str] = ()) -> str | None:
        """Return the server for a request; None where every one is out or has `most` requests.

        Args:
            key: Requests with the same key share a prefix, e.g. the task's id.
            avoid: Servers to skip where there are others, e.g. those on which this request failed.
        """
        live = [name for name in self._wanted(avoid) if not self._full(name)]
        if not live:
            return None
        mean = (sum(self.states[name].in_flight for name in live) + 1) / len(live)
        order = [name for name in self._order(key) if name in live]
        if self._fits(order[0], self._bound * mean):
            return order[0]
        # The next in the order, not the least loaded: it is the tree's second home and may have part of it cached.
        # One always fits: if each had its share of (in flight + 1) requests, more than are in flight would be.
        return next(name for name in order if self._fits(name, mean))

    def home(self, key: str, avoid: Collection[str] = ()) -> str | None:
        """Return the server that should have a request's history, regardless of load; None = all are out.

        Args:
            key, avoid: See `route`.
        """
        live = self._wanted(avoid)
        return next((name for name in self._order(key) if name in live), None)

    def room(self) -> list[str]:
        """Return the servers that are in and have fewer than `most` requests."""
        return [name for name in self.live() if not self._full(name)]

    def begin(self, name: str) -> int:
        """Record that a request was sent to a server; return the value for `began` of `end`."""
        self.states[name].in_flight += 1
        return self.states[name].ejections

    def end(self, name: str, ok: bool, began: int | None = None) -> bool:
        """Record the end of a request; a failure takes the server out.

        Args:
            name: The server.
            ok: Whether the answer was good.
            began: The value of `begin`: a failure of a request that started before the last ejection is ignored, since
                it had the same cause.

        Returns:
            Whether the server was taken out by this.
        """
        state = self.states[name]
        state.in_flight -= 1
        fresh = began is None or began == state.ejections
        if ok:
            if fresh and state.until is None:
                state.falls = 0
            return False
        return fresh and state.until is None and self.eject(name)

    def eject(self, name: str) -> bool:
        """Take a server out, or extend its time out; return whether it was in."""
        state = self.states[name]
        was_in = state.until is None
        state.ejections += was_in
        self.changes += was_in
        wait = min(self._longest, self._backoff * 2.0 ** min(state.falls, 60))
        state.falls += 1
        state.until = self._clock() + wait
        return was_in

    def restore(self, name: str) -> None:
        """Take a server back."""
        self.changes += self.states[name].until is not None
        self.states[name].until = None

    def live(self) -> list[str]:
        """Return the servers that are in."""
        return [name for name in self.names if self.states[name].until is None]

    def wait(self, name: str) -> float:
        """Return the seconds until a server may be checked; 0 where it may be, or is in."""
        until = self.states[name].until
        return 0.0 if until is None else max(0.0, until - self._clock())

    def _wanted(self, avoid: Collection[str]) -> list[str]:
        return [name for name in self.live() if name not in avoid] or self.live()

    def _ordered(self, key: str) -> tuple[str, ...]:
        return tuple(sorted(self.names, key=lambda name: derive_seed(0, key, name), reverse=True))

    def _full(self, name: str) -> bool:
        return self._most is not None and self.states[name].in_flight >= self._most

    def _fits(self, name: str, limit: float) -> bool:
        return self.states[name].in_flight + 1 <= math.ceil(limit - 1e-9)  # tolerate rounding errors of `limit`


@dataclass(eq=False, slots=True)
class WaitingRequest:
    """A request that waits.

    Attributes:
        number: Order of arrival; unchanged when it has to wait again.
        key: See `Router.route`.
        avoid: See `Router.route`; may change.
        overtaken: Number of later requests that were sent before it.
        turn: Set when it may be its turn, or when it should check the state of the pool.
        home: The server that has its history, from the last look-up.
        known: State for which `home` is valid: changes of the router, and number of servers to avoid.
    """

    number: int
    key: str
    avoid: Collection[str]
    overtaken: int = 0
    turn: threading.Event = field(default_factory=threading.Event)
    home: str | None = None
    known: tuple[int, int] = (-1, -1)


class ServerQueue:
    """The waiting requests in order; see the module. Not thread-safe.

    Args:
        router: Knows the free servers and the home of each request.

    Attributes:
        waiting: The requests, in the order of their arrival.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        # of so many requests at least one has its home there with probability 1 - 1/e⁴ where trees are spread evenly
        self._ahead = AHEAD * len(router.names)
        self.waiting: list[WaitingRequest] = []
        self._numbers = itertools.count()

    def waiter(self, key: str, avoid: Collection[str] = ()) -> WaitingRequest:
        """Return a new waiting request, last in the order of arrival."""
        return WaitingRequest(next(self._numbers), key, avoid)

    def join(self, waiter: WaitingRequest) -> None:
        """Add a request at its place in the order of arrival; no effect where it waits already."""
        if waiter not in self.waiting:
            bisect.insort(self.waiting, waiter, key=lambda each: each.number)

    def leave(self, waiter: WaitingRequest) -> None:
        """Remove a request; no effect where it does not wait."""
        if waiter in self.waiting:
            self.waiting.remove(waiter)

    def next(self) -> WaitingRequest | None:
        """Return the request whose turn it is; None where none waits, or none can be sent."""
        room = set(self._router.room()) if self.waiting else set()
        if not room:
            return None
        first: WaitingRequest | None = None
        for waiter in self.waiting[: self._ahead]:
            if waiter.overtaken >= self._ahead or self._home(waiter) in room:
                return waiter
            if first is None and self._router.route(waiter.key, waiter.avoid) is not None:
                first = waiter
        return first

    def _home(self, waiter: WaitingRequest) -> str | None:
        """Return a request's home; cached, since many requests are compared for each one that is sent."""
        known = (self._router.changes, len(waiter.avoid))
        if waiter.known != known:
            waiter.home, waiter.known = self._router.home(waiter.key, waiter.avoid), known
        return waiter.home

    def take(self, waiter: WaitingRequest) -> str | None:
        """Remove a request whose turn it is and return its server; None = it is not its turn."""
        if self.next() is not waiter:
            return None
        for other in self.waiting[: self.waiting.index(waiter)]:
            other.overtaken += 1
        self.leave(waiter)
        return self._router.route(waiter.key, waiter.avoid) or self._router.route(waiter.key)
