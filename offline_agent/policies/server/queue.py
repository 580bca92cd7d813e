"""Requests that wait for a server: the first goes first, unless the server that is free has another one's history.

Where all servers are full, the one that is freed would take whatever came first, and no tree would stay with the server
that has it in its prefix cache. So it takes the first of the next few whose home it is; where there is none, the first.
Without threads or a clock of its own.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Collection

from offline_agent.policies.server.router import Router

AHEAD = 4  # for each server: how far is looked ahead, and how often a request can be overtaken at most


class WaitingRequest:
    """A request that waits.

    Attributes:
        number: Position in the order of coming; kept when it has to wait again.
        key: As `Router.route`'s.
        avoid: As `Router.route`'s; may change.
        overtaken: How many requests that came later were let go before it.
        turn: Set when it may be its turn, or when whoever waits should look.
        home: The server that has its history, as far as it was looked up.
        known: What `home` was found for: changes of the router, and how many servers were to be avoided.
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


class RequestQueue:
    """See the module. Not thread-safe.

    Args:
        router: Says where there is room, and who is at home where.
        ahead: How many requests a freed server chooses among, and how many that came later are let go before one at
            most; None = 4 for each server: of so many, one is at home there nearly always (1 - 1/e⁴ = 98 % where trees
            are spread evenly).
    """

    def __init__(self, router: Router, ahead: int | None = None) -> None:
        self._router = router
        self._ahead = AHEAD * len(router.names) if ahead is None else ahead
        self._waiting: list[WaitingRequest] = []
        self._numbers = itertools.count()

    def waiter(self, key: str, avoid: Collection[str] = ()) -> WaitingRequest:
        """Return a request that has come now."""
        return WaitingRequest(next(self._numbers), key, avoid)

    def join(self, waiter: WaitingRequest) -> None:
        """Let a request wait, at the place that it came at; nothing happens where it waits already."""
        at = bisect.bisect_left(self._waiting, waiter.number, key=lambda each: each.number)
        if self._waiting[at : at + 1] != [waiter]:
            self._waiting.insert(at, waiter)

    def leave(self, waiter: WaitingRequest) -> None:
        """Let a request wait no longer; nothing happens where it does not."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)

    def next(self) -> WaitingRequest | None:
        """Return whose turn it is; None where nobody waits, or nobody who waits can go."""
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
        """Return a request's home; looked up once, since many are asked about for each that goes."""
        known = (self._router.changes, len(waiter.avoid))
        if waiter.known != known:
            waiter.home, waiter.known = self._router.home(waiter.key, waiter.avoid), known
        return waiter.home

    def take(self, waiter: WaitingRequest) -> str | None:
        """Return the server for a request whose turn it is, which then waits no longer; None = it is not its turn."""
        if self.next() is not waiter:
            return None
        for other in self._waiting:
            if other is waiter:
                break
            other.overtaken += 1
        self.leave(waiter)
        return self._router.route(waiter.key, waiter.avoid) or self._router.route(waiter.key)

    def everybody(self) -> tuple[WaitingRequest, ...]:
        """Return who waits, in order."""
        return tuple(self._waiting)
