"""The search tree, with the sums that the search keeps. It knows no environment, policy or clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offline_agent.records import Action, Context, Step, Task, Verdict
from offline_agent.search.nodes import WORDED, Edge, Node, mean_logp

__all__ = ["Edge", "KnownStates", "Node", "SearchTree", "back_up", "quarantine", "reset_value_range"]

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
            `tool_calls` (actions executed, of independent rollouts those of each).
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
        self.counters: dict[str, int] = {"generated": 0, "prefilled": 0, "tool_calls": 0}

    @property
    def root(self) -> Node:
        """The start of the episode."""
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
            context, key = node.context, node.edge.key.partition(WORDED)[0]
            assert context.action is not None  # only the root has none
            out.append(
                Step(
                    context.action, key, context.observation, context.role, node.edge.fault, recorded=context.recorded,
                    anew=context.anew,
                )
            )  # fmt: skip
            node = node.edge.parent
        if after is not None and node is not after:
            raise ValueError(f"node {after.id} is not on the way to the given node")
        return tuple(out[::-1])

    def note_first(self, verdict: Verdict | None, cut: str | None, steps: int, greedy: bool = False) -> None:
        """Record the result of one of the first rollouts: of so many steps, judged, or cut by something."""
        score, success = (None, None) if verdict is None else (verdict.score, verdict.success)
        rollout = {"greedy": greedy, "score": score, "success": success, "cut": cut, "steps": steps}
        self.first_rollouts.append(rollout)

    def terminals(self) -> Iterator[Node]:
        """Yield the nodes at which an episode ended or was cut, in order of creation."""
        return (node for node in self.nodes if node.terminated or node.cut is not None)


def back_up(
    tree: SearchTree, last: Node, value: float, score: float, success: bool, cut: bool, gamma: float, count: int = 1
) -> None:
    """Add a value to the sums from a node up to the root: Q = value_sum / visits.

    Args:
        tree: The tree.
        last: The node at which the episode ended.
        value: The value there; each edge above is discounted once more.
        score, success: The verdict's; of no account where the episode was cut.
        cut: A limit of the policy's own cut the episode.
        gamma: Discount per step.
        count: Number of episodes that ended there with this value.
    """
    tree.simulations += count
    low, high, node = tree.low, tree.high, last
    node.visits += count
    node.value_sum += count * value
    while (edge := node.edge) is not None:
        edge.visits = visits = edge.visits + count
        edge.value_sum = total = edge.value_sum + count * value
        if cut:
            edge.truncated += count
        else:
            edge.verified += count
            edge.score_sum += count * score
            if success:
                edge.successes += count
        mean = total / visits
        if mean < low:
            low = mean
        if mean > high:
            high = mean
        value *= gamma
        node = edge.parent
        node.visits += count
        node.value_sum += count * value
    tree.low, tree.high = low, high


def quarantine(tree: SearchTree, edge: Edge, reason: str, gamma: float) -> None:
    """Subtract the values backed up through an edge from its sums and all sums above; update `low` and `high`.

    The values behind it are noise. Nodes behind the edge keep their sums, as a record of what was measured there.

    Args:
        tree: The edge's.
        edge: The edge; where it is quarantined already, nothing changes.
        reason: Why its values are noise.
        gamma: Discount per step with which they were backed up.
    """
    tree.noisy = True
    if edge.quarantined is not None:
        return
    visits, value, score = edge.visits, edge.value_sum, edge.score_sum
    verified, successes, truncated = edge.verified, edge.successes, edge.truncated
    above: Edge | None = edge
    while above is not None and above.quarantined is None:  # sums behind another quarantined edge have left already
        above.visits -= visits
        above.verified -= verified
        above.successes -= successes
        above.truncated -= truncated
        above.value_sum = above.value_sum - value if above.visits else 0.0  # exactly 0: no rounding error is left
        above.score_sum = above.score_sum - score if above.verified else 0.0
        value *= gamma
        node = above.parent
        node.visits -= visits
        node.value_sum = node.value_sum - value if node.visits else 0.0
        above = node.edge
    edge.quarantined = reason
    if visits:
        reset_value_range(tree)


def reset_value_range(tree: SearchTree) -> None:
    """Set `low` and `high` by the values of edges that no quarantine covers."""
    tree.low, tree.high = float("inf"), float("-inf")
    sound = [True] * len(tree.nodes)
    for node in tree.nodes[1:]:
        edge = node.edge
        assert edge is not None  # only the root has none
        sound[node.id] = edge.quarantined is None and sound[edge.parent.id]  # a parent has the lower id
        if sound[node.id] and edge.visits:
            tree.see(edge.value_sum / edge.visits)


class KnownStates:
    """Fingerprints of a tree's states, each with the depths and the times at which it was reached.

    A simulation may look at any time while it runs, but must see what was there at its issue: otherwise the tree would
    depend on how many others were finished by then. So every state is kept with the number of commits before it.
    """

    __slots__ = ("_reached",)

    def __init__(self) -> None:
        self._reached: dict[str, list[tuple[int, int]]] = {}  # (commits, depth), later and less deep

    def add(self, fingerprint: str | None, depth: int, commits: int) -> None:
        """Add a state that a commit found.

        Args:
            fingerprint: The environment's hash of it; None, where it offers none, adds nothing.
            depth: Number of actions that led to it.
            commits: Number of commits of the tree, this one included.
        """
        if fingerprint is None:
            return
        reached = self._reached.setdefault(fingerprint, [])
        if not reached or depth < reached[-1][1]:
            reached.append((commits, depth))

    def has(self, fingerprint: str | None, depth: int, commits: int) -> bool:
        """Return whether the first `commits` commits found this state with at most `depth` actions."""
        if fingerprint is None:
            return False
        return any([known <= commits and least <= depth for known, least in self._reached.get(fingerprint, ())])
