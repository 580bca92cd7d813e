"""Histories that simulations in flight share before any of them is committed.

The tree changes at commits only. Until then, two simulations that reach the same new history meet in a `PendingNode`:
one of them asks the policy and executes the action, the others wait for its result. So every edge is executed once,
although several simulations of a tree are in flight.
"""

from __future__ import annotations

from typing import Any

from offline_agent.records import Context

EMPTY: Any = object()  # no value yet; None would be a value


class Future:
    """A value that is not there yet, and the simulations that wait for it."""

    __slots__ = ("value", "waiters")

    def __init__(self) -> None:
        self.value: Any = EMPTY
        self.waiters: list[Any] | None = None


class PendingNode(Future):
    """A new history that simulations in flight share; the node that it becomes is made at the commit.

    Its own value is the `Outcome` of the action that leads here, or an `EnvironmentFault`.

    Attributes:
        context: The history; set together with the outcome.
        seed: As `Node.seed`.
        samples: Proposals drawn here, by rank: an `Action` or a `PolicyError` each.
        children: The histories one action later, by canonical key.
    """

    __slots__ = ("context", "seed", "samples", "children")

    def __init__(self, seed: int) -> None:
        self.value: Any = EMPTY
        self.waiters: list[Any] | None = None
        self.context: Context | None = None
        self.seed = seed
        self.samples: list[Future] = []
        self.children: dict[str, PendingNode] = {}

    def sample(self, rank: int) -> Future:
        """Return the proposal of a rank; creates it and those before it where they are missing."""
        samples = self.samples
        while len(samples) <= rank:
            samples.append(Future())
        return samples[rank]


class SharedLeaf:
    """The new history at which several simulations leave the tree.

    Attributes:
        seed: As `Node.seed`, of that history.
        size: Number of simulations that ever joined; the rank of the next one.
        active: Number of those that are not committed.
        commits: As `Simulation.commits`, of those that join.
    """

    __slots__ = ("seed", "size", "active", "commits", "_start")

    def __init__(self, seed: int, size: int = 0, commits: int = 0) -> None:
        self.seed = seed
        self.size = size
        self.active = size
        self.commits = commits
        self._start: PendingNode | None = None

    def start(self) -> PendingNode:
        """Return the history itself; made at the first call, because most simulations share it with no other."""
        start = self._start
        if start is None:
            start = self._start = PendingNode(self.seed)
        return start
