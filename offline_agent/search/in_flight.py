"""Histories that simulations in flight share before any of them is committed.

The tree changes at commits only. Until then, two simulations that reach the same new history meet in a `PendingNode`:
one of them asks the policy and executes the action, the others wait for its result. So every edge is executed once,
although several simulations of a tree are in flight.
"""

from __future__ import annotations

from typing import Any

from offline_agent.errors import PolicyError
from offline_agent.records import Action, Context

Others = tuple[tuple[Action, str], ...]
NO_OTHERS: Others = ()


class PendingNode:
    """A new history that simulations in flight share; the node that it becomes is made at the commit.

    Attributes:
        key: Canonical key of the action that leads here; "" for the root.
        seed: As `Node.seed`; 0 after a turn that was not executed.
        outcome: The `Outcome` of that action, or an `EnvironmentFault`; None before it was executed.
        context: The history; set before the outcome. None where the action could not be executed.
        samples: Proposals drawn here, by rank.
        children: The histories one action later, by canonical key.
        waiters: Simulations that wait for the outcome or for a sample.
    """

    __slots__ = ("key", "seed", "outcome", "context", "samples", "children", "waiters")

    def __init__(self, key: str, seed: int, outcome: Any = None, context: Context | None = None) -> None:
        self.key = key
        self.seed = seed
        self.outcome = outcome
        self.context: Any = context
        self.samples: dict[int, Action | PolicyError] = {}
        self.children: dict[str, PendingNode] = {}
        self.waiters: list[Any] = []


class Transition:
    """One action beyond the tree.

    Attributes:
        sample: Index of the proposal where this simulation drew it, `simulation.IN_TREE` where the tree has it already.
        action: The action, in this simulation's words; `reached.context` has those of the one that executed it.
        reached: Its key, and what executing it gave.
        others: Proposals of the same request that were not followed, each with its key.
    """

    __slots__ = ("sample", "action", "reached", "others")

    def __init__(self, sample: int, action: Action, reached: PendingNode, others: Others = NO_OTHERS) -> None:
        self.sample = sample
        self.action = action
        self.reached = reached
        self.others = others


class SharedLeaf:
    """The new history at which several simulations leave the tree.

    Attributes:
        start: The history.
        size: Number of simulations that ever joined; the rank of the next one.
        active: Number of those that are not committed.
        commits: As `Simulation.commits`, of those that join.
    """

    __slots__ = ("start", "size", "active", "commits")

    def __init__(self, start: PendingNode, size: int = 0, commits: int = 0) -> None:
        self.start = start
        self.size = size
        self.active = size
        self.commits = commits

    def leave(self) -> None:
        """Count a simulation as committed; after the last one, what they shared is freed."""
        self.active -= 1
        if not self.active:
            self.start.samples, self.start.children = {}, {}
