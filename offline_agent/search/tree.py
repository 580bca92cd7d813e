"""The search tree: a node is a history, an edge is a canonical action. It knows no environment, policy or clock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from offline_agent.records import Action, Context, Step, Task, Verdict


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
"""Separates, in the key of a logged turn that was answered in several ways, the turn from a digest of the answer."""


def same_turn(one: str, other: str) -> bool:
    """Return whether two keys are of the same turn of the policy, which the world answered differently."""
    return one.partition(ANSWERED)[0] == other.partition(ANSWERED)[0]


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
        """Whether the episode was cut here; set to True, it means a cut by `max_steps`."""
        return self.cut is not None

    @truncated.setter
    def truncated(self, cut: bool) -> None:
        self.cut = "max_steps" if cut else None

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


USUAL_WIDTH = 8  # edges of a node; above it a dictionary is faster than looking at each


class SearchTree:
    """A tree of histories over one task, with the sums that the search keeps.

    Attributes:
        task: The task.
        tree_id: The task's id, or another unique name.
        nodes: Every node, in the order of creation; `nodes[i].id == i`.
        edges: Every edge, likewise.
        simulations: Number of simulations that backed a value up, those that a quarantine took back included.
        commits: Number of simulations committed, those that a fault ended included; `tickets` in tree files.
        low, high: Least and greatest edge value seen, by which selection normalises; since a quarantine, of the values
            that remain. `low > high` before the first.
        stopped: Why the search ended: `simulations`, `success`, `contrast`, `closed`, `tickets`, `tokens`,
            `prefilled`, `tool_calls`, `seconds` or `quarantined`; `logs` where it was made of logs; None while it goes
            on. See docs/search.md.
        quarantined: Why the whole tree is noise; None where it is sound.
        noisy: An edge is quarantined; never exported.
        first_rollouts: Results of the policy without search: one entry for each of the first rollouts from the root,
            the greedy one first, with `greedy`, `score`, `success`, `cut` (None, or what cut the rollout) and `steps`.
        counters: Deterministic totals: `generated` (sampled ids), `prefilled` (other ids of the trie of prompts),
            `tool_calls` (edges executed), `dropped` (actions of independent rollouts after an observation that differed
            from the tree's).
    """

    __slots__ = (
        "task", "tree_id", "nodes", "edges", "simulations", "commits", "low", "high", "stopped", "quarantined",
        "noisy", "first_rollouts", "counters", "_wide",
    )  # fmt: skip

    def __init__(self, context: Context, tree_id: str | None = None) -> None:
        self.task: Task = context.task
        self.tree_id = context.task.task_id if tree_id is None else tree_id
        self.nodes: list[Node] = [Node(0, None, context)]
        self.edges: list[Edge] = []
        self.simulations = 0
        self.commits = 0
        self.low = float("inf")
        self.high = float("-inf")
        self.stopped: str | None = None
        self.quarantined: str | None = None
        self.noisy = False
        self.first_rollouts: list[dict[str, Any]] = []
        self._wide: dict[int, dict[str, Edge]] = {}  # edges by key of the nodes with more than USUAL_WIDTH
        self.counters: dict[str, int] = {"generated": 0, "prefilled": 0, "tool_calls": 0, "dropped": 0}

    @property
    def root(self) -> Node:
        """The start of the episode; of a search from a recorded history, the end of that (`depth` is its length)."""
        return self.nodes[0]

    def find(self, node: Node, key: str) -> Edge | None:
        """Return the edge of `node` with that canonical key, or None."""
        edges = node.edges
        if len(edges) > USUAL_WIDTH:
            if (known := self._wide.get(node.id)) is None or len(known) != len(edges):
                known = self._wide[node.id] = {edge.key: edge for edge in edges}
            return known.get(key)
        for edge in edges:
            if edge.key == key:
                return edge
        return None

    def add_proposal(self, node: Node, action: Action, key: str, first: int = 0) -> tuple[Edge, bool]:
        """Merge one proposal into the tree. Priors are not refreshed.

        Args:
            node: The node at which it was drawn.
            action: The proposal.
            key: Its canonical key.
            first: Size of a node's first request; duplicates within it say nothing about what is left to find.

        Returns:
            Its edge, and whether the edge is new.
        """
        edge = self.find(node, key)
        logp = mean_logp(action)
        node.samples += 1
        if edge is not None:
            if node.samples > first:
                node.duplicates += 1
            edge.count += 1
            if all(known.text != action.text for known in edge.actions):
                edge.actions.append(action)
            if logp is not None and (edge.logp is None or logp > edge.logp):
                edge.logp = logp
            return edge, False
        edge = Edge(len(self.edges), node, key, [action], 1, logp)
        self.edges.append(edge)
        node.edges.append(edge)
        node.duplicates = 0
        if node.id in self._wide:
            self._wide[node.id][key] = edge
        return edge, True

    def add_child(self, edge: Edge, context: Context) -> Node:
        """Give an executed edge the node it leads to."""
        if edge.child is not None:
            raise ValueError(f"edge {edge.id} of tree {self.tree_id!r} was executed before: node {edge.child.id}")
        node = Node(len(self.nodes), edge, context)
        self.nodes.append(node)
        edge.child = node
        return node

    def see(self, value: float) -> None:
        """Extend the range of values by one that an edge has taken."""
        if value < self.low:
            self.low = value
        if value > self.high:
            self.high = value

    def path(self, node: Node) -> list[Edge]:
        """Return the edges from the root to `node`, first to last."""
        out: list[Edge] = []
        edge = node.edge
        while edge is not None:
            out.append(edge)
            edge = edge.parent.edge
        return out[::-1]

    def steps(self, node: Node, after: Node | None = None) -> tuple[Step, ...]:
        """Return the executed steps from the root, or from the node `after` on the way, to `node`.

        Raises:
            ValueError: `after` is not on the way from the root to `node`.
        """
        out: list[Step] = []
        while node is not after and node.edge is not None:
            context = node.context
            assert context.action is not None  # only the root has none
            out.append(
                Step(
                    context.action, node.edge.key, context.observation, context.role, node.edge.fault,
                    recorded=context.recorded,
                )
            )  # fmt: skip
            node = node.edge.parent
        if after is not None and node is not after:
            raise ValueError(f"node {after.id} is not on the way to the given node")
        return tuple(out[::-1])

    def terminals(self) -> Iterator[Node]:
        """Yield the nodes at which an episode ended or was cut, in order of creation."""
        return (node for node in self.nodes if node.terminated or node.cut is not None)
