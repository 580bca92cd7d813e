"""Router of requests over servers: rendezvous hashing with bounded loads; no sockets and no threads.

Requests of one task go to one server, which has their beginning in its prefix cache: the first in the order of a hash
of the task and the server (Thaler & Ravishankar 1998). One with more than its share of the requests in flight is passed
over (bounded loads; Mirrokni et al., arXiv:1608.01350). Where all are busy a slow server holds that share, a quarter
more than the mean, and the others less: this assumes that servers are equally fast.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from offline_agent.seeding import derive_seed

SHARE = 1.25  # most requests in flight at one server, as a multiple of the mean


@dataclass(slots=True)
class ServerState:
    """State of one server.

    Attributes:
        in_flight: Number of requests that it is answering.
        falls: Ejections and failed checks since its last good answer.
        ejections: Number of times it was taken out.
        out: Why it is out; None = it is in.
    """

    in_flight: int = 0
    falls: int = 0
    ejections: int = 0
    out: str | None = None


class Router:
    """Chooses a server for each request. Not thread-safe.

    Args:
        names: Distinct names of the servers.
        most: Most requests in flight, as a mean of the servers that are in. One may have `SHARE` times as many, so
            that where all are busy a request still goes to the server of its key, not to whichever is free first.

    Attributes:
        states: Of each server, by its name.
    """

    def __init__(self, names: Sequence[str], most: int) -> None:
        self.states = {name: ServerState() for name in names}
        self._most = most

    def live(self) -> list[str]:
        """Return the servers that are in."""
        return [name for name, state in self.states.items() if state.out is None]

    def choose(self, key: str, avoid: Collection[str] = ()) -> str | None:
        """Return the server for a request; None where every one is out or full.

        Args:
            key: Requests with the same key share a prefix, e.g. the task's id.
            avoid: Servers to skip where there are others, e.g. those on which this request failed.
        """
        live = self.live()
        flying = sum(self.states[name].in_flight for name in live)
        if flying >= self._most * len(live):
            return None
        # rounded down: below four requests a server a quarter more is nothing, and the request goes to the next server
        limit = min(int(SHARE * self._most), math.ceil(SHARE * (flying + 1) / len(live)))
        free = [name for name in live if self.states[name].in_flight < limit]
        return max(free, key=lambda name: (name not in avoid, derive_seed(0, key, name)), default=None)
