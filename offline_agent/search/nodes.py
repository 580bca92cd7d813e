"""Nodes and edges of a search tree: a node is a history, an edge is a canonical action, each with its statistics."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from offline_agent.records import Action, Context, Verdict


def observation_hash(observation: str | None) -> str:
    """Return 16 hex digits that identify an observation; "-" for none."""
    if observation is None:
        return "-"
    return hashlib.blake2b(observation.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def mean_logp(action: Action) -> float | None:
    """Return the action's log-probability per token; None where the policy gives none."""
    logps = action.logps
    return sum(logps) / len(logps) if logps else None


ANSWERED = "\0"
"""Separates, in the key of a turn that was answered in several ways, the turn from what names the answer."""
WORDED = "\1"
"""Separates, in the key of a turn that independent roll-outs took in several wordings, the turn from a number."""


def turn_key(key: str) -> str:
    """Return the canonical key of the turn that an edge's key is of."""
    return key.partition(WORDED)[0].partition(ANSWERED)[0]


def same_turn(one: str, other: str) -> bool:
    """Return whether two keys are of the same turn of the policy, in other words or with another answer."""
    return turn_key(one) == turn_key(other)


@dataclass(slots=True, eq=False, repr=False)
class Edge:
    """One canonical action after one node, with its statistics.

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
        verified: Number of those values that a verifier gave (the others are of rollouts that were cut, worth 0).
        score_sum: Sum of the verifier's scores.
        successes: Number of those that were successes.
        truncated: Number of rollouts through it that a limit of the policy's own cut (`records.POLICY_CUTS`).
        critic: The critic's score in [0, 1]; None where it was not asked.
        child: The node it leads to; None before it was executed.
        fault: Class of the error the environment answered with; None when the call went through or is unexecuted.
        closed: Nothing below it is left to learn; selection skips it.
        quarantined: Why the values behind it are noise; None where they are sound. Its own sums are 0 then.
        leaf: The state shared by the simulations in flight that execute it; never exported.
    """

    id: int
    parent: Node
    key: str
    actions: list[Action] = field(default_factory=list)
    count: int = 0
    logp: float | None = None
    prior: float = 0.0
    visits: int = 0
    value_sum: float = 0.0
    verified: int = 0
    score_sum: float = 0.0
    successes: int = 0
    truncated: int = 0
    pending: int = 0
    critic: float | None = None
    child: Node | None = None
    fault: str | None = None
    closed: bool = False
    quarantined: str | None = None
    leaf: Any = None

    @property
    def value(self) -> float | None:
        """Mean of the values backed up through the edge; None before the first."""
        return self.value_sum / self.visits if self.visits else None

    @property
    def exact(self) -> bool:
        """Whether the value is known exactly: the action ends the episode and its end state was judged."""
        child = self.child
        return child is not None and child.terminated and child.verdict is not None and child.verdict.score is not None


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """One history, with its statistics.

    Attributes:
        id: Position in `SearchTree.nodes`; 0 is the root.
        edge: The edge that leads here; None for the root.
        context: The history itself; its last observation is what this node shows.
        edges: Actions proposed here, in the order in which they became known.
        samples: Number of proposals drawn and committed here.
        duplicates: Number of proposals in a row, those of the first request apart, that added no edge.
        visits: Number of committed simulations that went through or ended here.
        value_sum: Sum of the values backed up through it.
        terminated: The episode is over here by itself.
        cut: The limit of the policy's own that cut the episode here, one of `records.POLICY_CUTS`; None where none did.
            The turn before a node with `tokens` never ended and was not executed.
        verdict: The end state's verdict; None where the episode goes on or gave none.
        fingerprint: The environment's hash of its state; None where it offers none.
        goal: The task that the state achieves, as `reset`'s keyword arguments; None where the environment does not say.
        closed: Nothing below it is left to learn.
        greedy: Reached by greedy actions alone.
        pending: Number of simulations in flight through or at this node.
        drawing: A simulation in flight draws proposals here.
        state: The restorer's handle on the environment in this state; never exported.
        seed: Seed of the proposals drawn here; derives from the path of canonical keys alone; never exported.
        leaf: The state shared by the simulations that found this node together; nothing more is drawn here while one of
            them is in flight, because it may be executing the same action; never exported.
    """

    id: int
    edge: Edge | None
    context: Context
    terminated: bool = False
    verdict: Verdict | None = None
    fingerprint: str | None = None
    goal: dict[str, Any] | None = None
    state: Any = None
    seed: int = 0
    greedy: bool = False
    visits: int = 0
    value_sum: float = 0.0
    leaf: Any = None
    edges: list[Edge] = field(default_factory=list)
    samples: int = 0
    duplicates: int = 0
    cut: str | None = None
    closed: bool = False
    drawing: bool = False
    pending: int = 0

    @property
    def truncated(self) -> bool:
        """Whether the episode was cut here."""
        return self.cut is not None

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
        """Reason of the nearest quarantined edge above, which makes all values from here on noise; None without one."""
        edge = self.edge
        while edge is not None:
            if edge.quarantined is not None:
                return edge.quarantined
            edge = edge.parent.edge
        return None


def same_action(one: Any, other: Any) -> bool:
    """Return whether two actions are the same turn of the policy, word for word."""
    return one is other or (one.text == other.text and one.token_ids == other.token_ids)


def same_history(one: Context | None, other: Context | None) -> bool:
    """Return whether two histories are the same, word for word."""
    while one is not other:
        if one is None or other is None or one.observation != other.observation:
            return False
        if not same_action(one.action, other.action):
            return False
        one, other = one.parent, other.parent
    return True
