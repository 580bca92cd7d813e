"""Queue of requests that wait for a server: first come first served, except for requests whose history it has cached.

Where all servers are full, a freed server would take the oldest request, and no tree would stay with the server that
has it in its prefix cache. So the freed server takes the first of the next few requests whose home it is, and the
oldest one where there is none. The module uses no threads and no clock.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Collection

from offline_agent.policies.server.router import Router

AHEAD = 4  # per server: number of requests looked at, and the most times that a request can be overtaken


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

    __slots__ = ("avoid", "home", "key", "known", "number", "overtaken", "turn")

    def __init__(self, number: int, key: str, avoid: Collection[str]) -> None:
        self.number = number
        self.key = key
        self.avoid = avoid
        self.overtaken = 0
        self.turn = threading.Event()
        self.home: str | None = None
        self.known = (-1, -1)


class ServerQueue:
    """The waiting requests in order; see the module. Not thread-safe.

    Args:
        router: Knows the free servers and the home of each request.
        ahead: Number of requests that a freed server chooses from, and the most times that a request can be overtaken;
            None = 4 per server. Of so many requests, at least one has its home there with probability 1 - 1/e⁴ = 98 %
            where trees are spread evenly.
    """

    def __init__(self, router: Router, ahead: int | None = None) -> None:
        self._router = router
        self._ahead = AHEAD * len(router.names) if ahead is None else ahead
        self._waiting: list[WaitingRequest] = []
        self._numbers = itertools.count()

    def waiter(self, key: str, avoid: Collection[str] = ()) -> WaitingRequest:
        """Return a new waiting request, last in the order of arrival."""
        return WaitingRequest(next(self._numbers), key, avoid)

    def join(self, waiter: WaitingRequest) -> None:
        """Add a request at its place in the order of arrival; no effect where it waits already."""
        at = bisect.bisect_left(self._waiting, waiter.number, key=lambda each: each.number)
        if self._waiting[at : at + 1] != [waiter]:
            self._waiting.insert(at, waiter)

    def leave(self, waiter: WaitingRequest) -> None:
        """Remove a request; no effect where it does not wait."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)

    def next(self) -> WaitingRequest | None:
        """Return the request whose turn it is; None where none waits, or none can be sent."""
        room = set(self._router.room()) if self._waiting else set()
        if not room:
            return None
        first: WaitingRequest | None = None
        for waiter in self._waiting[: self._ahead]:
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
        for other in self._waiting:
            if other is waiter:
                break
            other.overtaken += 1
        self.leave(waiter)
        return self._router.route(waiter.key, waiter.avoid) or self._router.route(waiter.key)

    def everybody(self) -> tuple[WaitingRequest, ...]:
        """Return the waiting requests, in order."""
        return tuple(self._waiting)
