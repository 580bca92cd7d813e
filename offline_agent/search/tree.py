"""The search tree: nodes are histories, edges are canonical actions. Knows no environment, policy or clock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from offline_agent.records import Action, Context, Role, Step, Task, Verdict

if TYPE_CHECKING:
    import networkx as nx


def observation_hash(observation: str | None) -> str:
    """Return 16 hex digits that identify an observation; "-" for none."""
    if observation is None:
        return "-"
    return hashlib.blake2b(observation.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class Edge:
    """One canonical action after one node, and what is known of it.

    Attributes:
        id: Position in `SearchTree.edges`.
        parent: The node it leaves.
        key: Canonical key, unique among the node's edges.
        actions: Every proposal that has this key, in sample order; the first is the one that is executed.
        count: Number of proposals merged into the edge; 0 only for an edge added by hand.
        logp: Length-normalised log-probability of the best proposal; None where the policy gives none.
        prior: Share of the policy's belief, (count + softmax of logp) / (K + 1); the priors of a node sum to 1.
        visits: Number of committed simulations that went through it.
        pending: Number of simulations in flight through it (WU-UCT's incomplete visits).
        value_sum: Sum of the values backed up through it.
        verified: Number of those values that a verifier gave (the others are truncations, flagged and worth 0).
        score_sum: Sum of the verifier's scores.
        successes: Number of those that were successes.
        truncated: Number of rollouts through it that used up `max_steps`.
        critic: The critic's score in [0, 1]; None where it was not asked.
        child: The node it leads to; None before it was executed.
        fault: Class of the error the environment answered with; None when the call went through or is unexecuted.
        closed: Nothing below it is left to learn.
        quarantined: Why its values are noise; None where they are sound.
    """

    __slots__ = (
        "id", "parent", "key", "actions", "count", "logp", "prior", "visits", "pending", "value_sum", "verified",
        "score_sum", "successes", "truncated", "critic", "child", "fault", "closed", "quarantined",
    )  # fmt: skip

    def __init__(self, id: int, parent: Node, key: str) -> None:
        self.id = id
        self.parent = parent
        self.key = key
        self.actions: list[Action] = []
        self.count = 0
        self.logp: float | None = None
        self.prior = 0.0
        self.visits = 0
        self.pending = 0
        self.value_sum = 0.0
        self.verified = 0
        self.score_sum = 0.0
        self.successes = 0
        self.truncated = 0
        self.critic: float | None = None
        self.child: Node | None = None
        self.fault: str | None = None
        self.closed = False
        self.quarantined: str | None = None

    @property
    def value(self) -> float | None:
        """Mean of the values backed up through the edge; None before the first."""
        return self.value_sum / self.visits if self.visits else None

    @property
    def exact(self) -> bool:
        """Whether the value is known exactly: the action ends the episode and its end state was judged."""
        child = self.child
        return child is not None and child.terminated and child.verdict is not None and child.verdict.score is not None


class Node:
    """One history.

    Attributes:
        id: Position in `SearchTree.nodes`; 0 is the root.
        edge: The edge that leads here; None for the root.
        context: The history itself; its last observation is what this node shows.
        edges: Actions proposed here, in the order in which they became known.
        samples: Number of proposals drawn here.
        duplicates: Number of proposals in a row that added no edge.
        visits: Number of committed simulations that went through or ended here.
        value_sum: Sum of the values backed up through it.
        terminated: The episode is over here by itself.
        truncated: The episode was cut here because `max_steps` were used up.
        verdict: The end state's verdict; None where the episode goes on or nobody could be asked.
        fingerprint: The environment's hash of its state; None where it offers none.
        goal: What the state achieves, as `reset`'s keyword arguments; None where the environment does not say.
        closed: Nothing below it is left to learn.
        greedy: Reached by greedy actions alone.
    """

    __slots__ = (
        "id", "edge", "context", "edges", "samples", "duplicates", "visits", "value_sum", "terminated", "truncated",
        "verdict", "fingerprint", "goal", "closed", "greedy", "by_key", "asking",
    )  # fmt: skip

    def __init__(self, id: int, edge: Edge | None, context: Context) -> None:
        self.id = id
        self.edge = edge
        self.context = context
        self.edges: list[Edge] = []
        self.by_key: dict[str, Edge] = {}
        self.samples = 0
        self.duplicates = 0
        self.visits = 0
        self.value_sum = 0.0
        self.terminated = False
        self.truncated = False
        self.verdict: Verdict | None = None
        self.fingerprint: str | None = None
        self.goal: dict[str, object] | None = None
        self.closed = False
        self.greedy = False
        self.asking = False

    @property
    def depth(self) -> int:
        """Number of actions taken to get here."""
        return self.context.depth

    @property
    def value(self) -> float | None:
        """Mean of the values backed up through the node; None before the first."""
        return self.value_sum / self.visits if self.visits else None

    @property
    def parent(self) -> Node | None:
        """The node one action earlier; None for the root."""
        return None if self.edge is None else self.edge.parent

    @property
    def quarantined(self) -> str | None:
        """Why the values from here on are noise: the nearest quarantined edge on the way from the root."""
        edge = self.edge
        while edge is not None:
            if edge.quarantined is not None:
                return edge.quarantined
            edge = edge.parent.edge
        return None
