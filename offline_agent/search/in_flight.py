"""Histories that simulations in flight share before any of them is committed.

The tree changes at commits only. Until then, two simulations that reach the same new history meet in a `PendingNode`:
one of them asks the policy and executes the action, the others wait for its result. So every edge is executed once,
although several simulations of a tree are in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from offline_agent.errors import PolicyError
from offline_agent.records import Action

Others = tuple[tuple[Action, str], ...]
NO_OTHERS: Others = ()


@dataclass(slots=True, eq=False, repr=False)
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

    key: str
    seed: int
    outcome: Any = None
    context: Any = None
    samples: dict[int, Action | PolicyError] = field(default_factory=dict)
    children: dict[str, PendingNode] = field(default_factory=dict)
    waiters: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class Transition:
    """One action beyond the tree.

    Attributes:
        sample: Index of the proposal where this simulation drew it, `simulation.IN_TREE` where the tree has it already.
        action: The action, in this simulation's words; `reached.context` has those of the one that executed it.
        reached: Its key, and what executing it gave.
        others: Proposals of the same request that were not followed, each with its key.
    """

    sample: int
    action: Action
    reached: PendingNode
    others: Others = NO_OTHERS


@dataclass(slots=True, eq=False, repr=False)
class SharedLeaf:
    """The new history at which several simulations leave the tree.

    Attributes:
        start: The history.
        size: Number of simulations that ever joined; the rank of the next one.
        active: Number of those that are not committed.
        commits: As `Simulation.commits`, of those that join.
    """

    start: PendingNode
    size: int = 0
    commits: int = 0
    active: int = field(init=False)

    def __post_init__(self) -> None:
        self.active = self.size

    def leave(self) -> None:
        """Count a simulation as committed; after the last one, what they shared is freed."""
        self.active -= 1
        if not self.active:
            self.start.samples, self.start.children = {}, {}
