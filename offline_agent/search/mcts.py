"""One tree's search: which simulation is issued when, and what its commit does to the tree.

Ticket t is issued only after ticket t - L was committed, and tickets commit in order, so a tree is a function of its
seed, its settings, the policy and the environment, however many workers there are and whoever is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offline_agent.errors import ConfigError, DataError
from offline_agent.records import Context, Task, Trajectory
from offline_agent.search.codec import ticket_from_record, ticket_to_record
from offline_agent.search.restore import Opening, Outcome, World
from offline_agent.search.selection import GumbelRoot, puct, refresh_priors, uct
from offline_agent.search.simulation import EMPTY, Group, Link, Rules, Shadow, Ticket, simulate
from offline_agent.search.tree import Edge, Node, SearchTree
from offline_agent.seeding import derive_seed

Reward = Callable[[Trajectory], float | None]


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How a tree is searched; the defaults are those of algorithms.md section 2.

    Attributes:
        algorithm: `mcts`, or `best_of_n`: independent rollouts, the baseline.
        simulations: Rollouts per tree.
        proposals: K0, proposals drawn in one request where a node is expanded; also the number of plain policy
            rollouts with which a tree starts.
        rollout_proposals: Proposals drawn in one request at each new node of a rollout. 1 leaves the others to the
            time when the node is expanded, if ever; `proposals` draws them all at once (fewer, larger requests).
        max_children, widening: A node may have ceil(widening * sqrt(N)) children, at least K0, at most `max_children`.
        saturation: Proposals in a row that add nothing before a node counts as exhausted.
        selection: `puct` or `uct`.
        c_puct, c_uct, fpu_reduction: Constants of the two rules.
        gumbel_root, gumbel_m: Gumbel top-m with sequential halving at the root.
        leaves_in_flight: L, simulations in flight per tree.
        max_steps: Actions after which an episode is cut; it then backs up 0, flagged.
        gamma: Discount per step.
        value: `reward` backs up the score, `success` backs up 0 or 1.
        temperature, max_tokens: Of proposals; None = the policy's own.
        greedy_first: The first rollout is the greedy one.
        critic_alpha: Weight of the search against the critic; None = n / (n + 2).
        deterministic_verifier: A judged terminal is closed after one visit.
        budget_tokens, budget_prefilled, budget_tool_calls: Per tree; None = unlimited. A simulation is issued only if
            its worst case still fits.
        action_tokens: The most tokens one action can have (the reservation); 0 for policies without tokens.
    """

    algorithm: str = "mcts"
    simulations: int = 32
    proposals: int = 4
    rollout_proposals: int = 1
    max_children: int = 8
    widening: float = 2.0
    saturation: int = 3
    selection: str = "puct"
    c_puct: float = 1.25
    c_uct: float = 1.0
    fpu_reduction: float = 0.2
    gumbel_root: bool = False
    gumbel_m: int = 8
    leaves_in_flight: int = 4
    max_steps: int = 15
    gamma: float = 1.0
    value: str = "reward"
    temperature: float | None = None
    max_tokens: int | None = None
    greedy_first: bool = True
    critic_alpha: float | None = None
    deterministic_verifier: bool = True
    budget_tokens: int | None = None
    budget_prefilled: int | None = None
    budget_tool_calls: int | None = None
    action_tokens: int = 0

    def __post_init__(self) -> None:
        faults = []
        for name, allowed in (
            ("algorithm", ("mcts", "best_of_n")), ("selection", ("puct", "uct")), ("value", ("reward", "success")),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                faults.append(f"search.{name}: got {getattr(self, name)!r}, allowed: {', '.join(allowed)}")
        for name in ("simulations", "proposals", "max_children", "saturation", "gumbel_m", "max_steps"):
            if getattr(self, name) < 1:
                faults.append(f"search.{name}: got {getattr(self, name)}, must be at least 1")
        if not 1 <= self.leaves_in_flight <= 64:
            faults.append(f"search.leaves_in_flight: got {self.leaves_in_flight}, must be between 1 and 64")
        if self.max_children < self.proposals:
            faults.append(f"search.max_children: got {self.max_children}, must be at least search.proposals")
        if not 1 <= self.rollout_proposals <= self.proposals:
            faults.append(
                f"search.rollout_proposals: got {self.rollout_proposals}, must be between 1 and search.proposals"
            )
        if not 0 < self.gamma <= 1:
            faults.append(f"search.gamma: got {self.gamma}, must be in (0, 1]")
        if faults:
            raise ConfigError(faults)


class TreeSearch:
    """The search of one task: issue, run (elsewhere), commit.

    Args:
        task: The task.
        world: Its environment.
        settings: How to search.
        seed: The run's seed.
        critic: Whether proposals are shown to a critic.
        reward: Turns a judged trajectory into the value in [0, 1] that is backed up; None = the verifier's score.
        segment: The renderer's `segment`, by which prefilled tokens are counted; None counts none.
        log: Receives one JSON-serialisable record per commit, before the tree changes; None keeps no log.
        tree_id: Unique name; the task's id when None.
    """

    def __init__(
        self,
        task: Task,
        world: World,
        settings: SearchSettings,
        seed: int = 0,
        *,
        critic: bool = False,
        reward: Reward | None = None,
        segment: Callable[[Context], Sequence[int]] | None = None,
        log: Callable[[dict[str, Any]], None] | None = None,
        tree_id: str | None = None,
    ) -> None:
        self.task = task
        self.world = world
        self.settings = settings
        self.tree_id = task.task_id if tree_id is None else tree_id
        self.tree: SearchTree | None = None
        self._log = log
        self._segment = segment
        self._rules = Rules(
            settings.max_steps, settings.temperature, settings.max_tokens, settings.value == "success", critic,
            settings.rollout_proposals, settings.proposals if settings.greedy_first else 0, reward,
        )  # fmt: skip
        self._seed = derive_seed(seed, "tree", self.tree_id)
        self._select = (
            puct(settings.c_puct, settings.fpu_reduction, settings.critic_alpha)
            if settings.selection == "puct"
            else uct(settings.c_uct, settings.critic_alpha)
        )
        self._gumbel: GumbelRoot | None = None
        self._opening: Opening | None = None
        self._root_group: Group | None = None
        self._flight: list[Ticket] = []
        self._issued = 0
        self._out_of_time = False
        self._step_cost = (settings.action_tokens * settings.max_steps, settings.max_steps)

    # -- life of a tree ------------------------------------------------------------------------------------------

    def open(self, opening: Opening) -> None:
        """Start the tree from an opened world."""
        self._opening = opening
        context = Context(self.task, opening.system, opening.tools, opening.observation)
        self.tree = SearchTree(context, self.tree_id)
        root = self.tree.root
        root.state, root.seed = opening.state, self._seed
        root.greedy = True
        root.group = self._root_group = self._new_root_group(root)

    def abandon(self, reason: str) -> None:
        """Record that the world could not be opened; the tree stays empty and quarantined."""
        self.tree = SearchTree(Context(self.task, "", (), None), self.tree_id)
        self.tree.quarantined, self.tree.stopped = reason, "quarantined"

    def stop_for_time(self) -> None:
        """Issue nothing more; what is in flight still commits."""
        self._out_of_time = True

    @property
    def finished(self) -> bool:
        """Nothing is in flight and nothing more will be issued."""
        tree = self.tree
        return tree is not None and tree.stopped is not None and not self._flight

    @property
    def in_flight(self) -> tuple[Ticket, ...]:
        """Simulations issued and not yet committed, in order."""
        return tuple(self._flight)

    def replay(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Bring the tree to where a log ends, as if every record had just been committed.

        Raises:
            DataError: A record does not fit the tree that the settings and seed lead to.
        """
        for record in records:
            self.issue()
            if not self._flight or self._flight[0].index != record.get("t"):
                waiting = self._flight[0].index if self._flight else "none"
                raise DataError(
                    f"the event log of tree {self.tree_id!r} continues with simulation {record.get('t')}, but this "
                    f"run would commit {waiting}: the log belongs to other settings or another version of the code"
                )
            ticket = self._flight[0]
            assert self.tree is not None  # issue made sure of it
            ticket_from_record(ticket, record, self.tree, self.world)
            self._fill_shadows(ticket)
            ticket.done = True
            self._commit(ticket)

    # -- issue ---------------------------------------------------------------------------------------------------

    def issue(self) -> list[Ticket]:
        """Issue what may be issued now; return the new tickets, ready to run."""
        tree, settings, out = self.tree, self.settings, []
        assert tree is not None and self._opening is not None, "open the tree first"
        while tree.stopped is None and len(self._flight) < settings.leaves_in_flight:
            reason = self._why_stop(tree)
            if reason is not None:
                if not self._flight:
                    tree.stopped = reason
                break
            ticket = self._next_ticket(tree)
            if ticket is None:
                if not self._flight:
                    tree.stopped = "closed"
                break
            ticket.search = self
            ticket.run = simulate(ticket, self._opening, self._rules)
            self._issued += 1
            self._flight.append(ticket)
            out.append(ticket)
        return out

    def _why_stop(self, tree: SearchTree) -> str | None:
        settings, flight = self.settings, len(self._flight)
        if tree.quarantined is not None:
            return "quarantined"
        if self._out_of_time:
            return "seconds"
        if tree.simulations + flight >= settings.simulations:
            return "simulations"
        if tree.tickets + flight >= 4 * settings.simulations + 16:  # faults and duplicates must not go on for ever
            return "tickets"
        if tree.root.closed and not flight:
            return "closed"
        tokens, calls = self._step_cost
        worst = (flight + 1) * tokens
        if settings.budget_tokens is not None:
            worst *= settings.rollout_proposals
            extra = (settings.proposals - 1) * settings.action_tokens * (flight + 1)
            if tree.counters["generated"] + worst + extra > settings.budget_tokens:
                return "tokens"
        if settings.budget_tool_calls is not None:
            if tree.counters["tool_calls"] + (flight + 1) * calls > settings.budget_tool_calls:
                return "tool_calls"
        if settings.budget_prefilled is not None and tree.counters["prefilled"] >= settings.budget_prefilled:
            return "prefilled"
        return None

    def _next_ticket(self, tree: SearchTree) -> Ticket | None:
        settings, index = self.settings, self._issued
        if settings.algorithm == "best_of_n":
            ticket = Ticket(index, [], tree.root)
            ticket.group, ticket.rank = self._new_root_group(tree.root), 0
            ticket.group.shadow.seed = derive_seed(self._seed, "rollout", index)
            ticket.greedy = index == 0 and settings.greedy_first
            return self._mark(ticket)
        if index < settings.proposals:
            assert self._root_group is not None  # made by open
            ticket = Ticket(index, [], tree.root)
            ticket.group, ticket.rank = self._root_group, index
            ticket.greedy = index == 0 and settings.greedy_first
            return self._mark(ticket)
        node, path = tree.root, []
        while True:
            count = self._wanted(node)
            if count:
                ticket = Ticket(index, path, node)
                ticket.draw = range(node.samples, node.samples + count)
                node.asking = True
                return self._mark(ticket)
            edge = self._choose(tree, node)
            if edge is None:
                return None
            path.append(edge)
            child = edge.child
            if child is None:
                if node.group is not None and node.group.active:
                    return None  # those who found this node together may be executing this very action
                ticket = Ticket(index, path[:-1], node)
                ticket.edge = edge
                if edge.group is None:
                    edge.group = Group(Shadow(derive_seed(node.seed, edge.key)))
                ticket.group, ticket.rank = edge.group, edge.group.size
                edge.group.size += 1
                edge.group.active += 1
                edge.pending += 1
                return self._mark(ticket)
            node = child

    def _choose(self, tree: SearchTree, node: Node) -> Edge | None:
        if node.edge is None and self.settings.gumbel_root:
            if self._gumbel is None:
                settings = self.settings
                self._gumbel = GumbelRoot(settings.gumbel_m, settings.simulations, derive_seed(self._seed, "gumbel"))
            return self._gumbel.select(tree, node)
        return self._select(tree, node)

    def _wanted(self, node: Node) -> int:
        """Return how many proposals the node should draw before it is left through one of its edges."""
        settings = self.settings
        group = node.group
        if node.asking or (group is not None and group.active):
            return 0
        edges = len(node.edges)
        if node.duplicates >= settings.saturation or edges >= settings.max_children:
            return 0
        if node.edge is None and settings.gumbel_root and edges < settings.gumbel_m and self._gumbel is None:
            return min(settings.gumbel_m - edges, settings.proposals)
        if node.samples < settings.proposals:
            return settings.proposals - node.samples
        limit = settings.widening * math.sqrt(node.visits)
        if edges < limit and edges < settings.max_children:
            return min(settings.proposals, min(settings.max_children, math.ceil(limit)) - edges)
        if all(edge.closed for edge in node.edges):
            return settings.proposals
        return 0

    def _mark(self, ticket: Ticket) -> Ticket:
        for edge in ticket.path:
            edge.pending += 1
            edge.parent.pending += 1
        ticket.node.pending += 1
        return ticket

    def _new_root_group(self, root: Node) -> Group:
        assert self._opening is not None  # set by open
        shadow = Shadow(self._seed)
        shadow.context = root.context
        shadow.value = Outcome(root.context.observation, "user", False, state=self._opening.state)
        return Group(shadow, 1 if self.settings.algorithm == "best_of_n" else self.settings.proposals)

    # -- commit --------------------------------------------------------------------------------------------------

    def finish(self, ticket: Ticket) -> list[Ticket]:
        """Take a simulation that has run to its end; commit what is in order; return newly issued tickets."""
        ticket.done = True
        ticket.run = None
        out: list[Ticket] = []
        while self._flight and self._flight[0].done:
            self._commit_logged(self._flight[0])
            out += self.issue()
        return out

    def _commit_logged(self, ticket: Ticket) -> None:
        if self._log is not None:
            self._log(ticket_to_record(self.tree_id, ticket))
        self._commit(ticket)

    def _commit(self, ticket: Ticket) -> None:
        self._flight.pop(0)
        tree = self.tree
        assert tree is not None  # a ticket was issued
        tree.tickets += 1
        for edge in ticket.path:
            edge.pending -= 1
            edge.parent.pending -= 1
        ticket.node.pending -= 1
        if ticket.edge is not None:
            ticket.edge.pending -= 1
        if ticket.group is not None:
            ticket.group.active -= 1
        if ticket.draw:
            self._commit_proposals(tree, ticket)
        last, edges = self._commit_chain(tree, ticket)
        if ticket.mismatch is not None:
            self._quarantine_from(tree, ticket, edges)
        if ticket.value is not None:
            self._back_up(tree, ticket, edges)
        self._note_first(tree, ticket)
        self._close_from(last)

    def _commit_proposals(self, tree: SearchTree, ticket: Ticket) -> None:
        node = ticket.node
        node.asking = False
        for _, action, key in ticket.drawn:
            self._count(tree, node, action)
            edge, _ = tree.add_proposal(node, action, key)
            if action.fault == "no_end":
                edge.closed, edge.fault = True, action.fault
        for edge in node.edges:
            score = ticket.critic.get(edge.key)
            if score is not None:
                edge.critic = score
        if node.edges:
            refresh_priors(node)
        if not ticket.drawn:
            node.duplicates += self.settings.saturation  # the policy cannot answer here: ask elsewhere

    def _count(self, tree: SearchTree, node: Node, action: Any) -> None:
        if action.token_ids is not None:
            tree.counters["generated"] += len(action.token_ids)
        if node.samples == 0 and self._segment is not None:
            before = node.context.action
            known = 0 if before is None or before.token_ids is None else len(before.token_ids)
            tree.counters["prefilled"] += len(self._segment(node.context)) - known

    def _commit_chain(self, tree: SearchTree, ticket: Ticket) -> tuple[Node, list[Edge]]:
        """Let the simulation's nodes join the tree; return the last node reached and the edges from the root to it."""
        node, edges, deterministic = ticket.node, list(ticket.path), self.settings.deterministic_verifier
        group = ticket.group
        independent = self.settings.algorithm == "best_of_n"
        for position, link in enumerate(ticket.chain):
            edge = tree.find(node, link.key)
            if link.sample >= 0 and not (position == 0 and ticket.draw):
                self._count(tree, node, link.action)
                key = link.key
                if independent and edge is not None and not _same(edge.actions[0], link.action):
                    key = f"{link.key}#{link.sample}.{ticket.index}"  # independent rollouts never share another's turn
                edge, _ = tree.add_proposal(node, link.action, key)
                for other, other_key in link.others:
                    self._count(tree, node, other)
                    extra, _ = tree.add_proposal(node, other, other_key)
                    if other.fault == "no_end":
                        extra.closed, extra.fault = True, other.fault
                refresh_priors(node)
            assert edge is not None  # proposed just now, or known at issue
            edges.append(edge)
            if link.outcome is None:
                edge.closed = True
                if ticket.cut == "tokens":
                    edge.fault = link.action.fault
                elif ticket.mismatch is None and edge.quarantined is None:
                    edge.quarantined = link.reason or "unknown fault"
                return node, edges
            if edge.child is None:
                self._add_child(tree, edge, link, ticket.greedy).group = group
                if link.outcome.terminated and (deterministic or ticket.cut == "unscored"):
                    edge.closed = True
                if ticket.cut == "unscored" and link.outcome.terminated:
                    edge.quarantined = f"verifier: {ticket.error}"
            elif link.context is not None and link.context is not edge.child.context:
                if not _same_history(link.context, edge.child.context):
                    tree.counters["dropped"] += len(ticket.chain) - position - 1
                    return edge.child, edges
            node = edge.child  # type: ignore[assignment]  # set just above
            edge.group = None
        if ticket.cut == "max_steps" and node is not ticket.node:
            node.truncated = True
            assert node.edge is not None  # not the root
            node.edge.closed = True
        return node, edges

    def _add_child(self, tree: SearchTree, edge: Edge, link: Link, greedy: bool) -> Node:
        outcome, context = link.outcome, link.context
        assert outcome is not None and context is not None  # the caller looked
        node = tree.add_child(edge, context)
        tree.counters["tool_calls"] += 1
        edge.fault = outcome.fault
        node.terminated = outcome.terminated
        node.verdict, node.goal, node.fingerprint = outcome.verdict, outcome.goal, outcome.fingerprint
        node.state, node.seed = outcome.state, link.seed
        node.greedy = greedy and edge.parent.greedy
        return node

    def _back_up(self, tree: SearchTree, ticket: Ticket, edges: list[Edge]) -> None:
        value, gamma, verdict = ticket.value, self.settings.gamma, ticket.verdict
        assert value is not None  # the caller looked
        tree.simulations += 1
        truncated = ticket.cut == "max_steps"
        score = verdict.score if verdict is not None and verdict.score is not None else 0.0
        success = 1 if verdict is not None and verdict.success else 0
        last = edges[-1].child if edges else tree.root
        if last is not None:
            last.visits += 1
            last.value_sum += value
        low, high = tree.low, tree.high
        for edge in reversed(edges):
            edge.visits += 1
            edge.value_sum += value
            if truncated:
                edge.truncated += 1
            else:
                edge.verified += 1
                edge.score_sum += score
                edge.successes += success
            mean = edge.value_sum / edge.visits
            if mean < low:
                low = mean
            if mean > high:
                high = mean
            value *= gamma
            node = edge.parent
            node.visits += 1
            node.value_sum += value
        tree.low, tree.high = low, high

    def _quarantine_from(self, tree: SearchTree, ticket: Ticket, edges: list[Edge]) -> None:
        depth = ticket.mismatch or 0
        if depth == 0 or depth > len(edges):
            tree.quarantined = ticket.error
            return
        edge = edges[depth - 1]
        edge.quarantined, edge.closed = ticket.error, True
        self._close_from(edge.parent)

    def _note_first(self, tree: SearchTree, ticket: Ticket) -> None:
        rollouts = self.settings.simulations if self.settings.algorithm == "best_of_n" else self.settings.proposals
        if ticket.index >= rollouts:
            return
        verdict = ticket.verdict
        tree.first_rollouts.append(
            {
                "greedy": ticket.greedy,
                "score": None if verdict is None else verdict.score,
                "success": None if verdict is None else verdict.success,
                "cut": ticket.cut,
                "steps": len(ticket.chain),
            }
        )

    def _close_from(self, node: Node) -> None:
        """Close what has nothing left to learn, from `node` towards the root."""
        settings = self.settings
        if settings.algorithm == "best_of_n":
            return
        while True:
            over = node.terminated or node.truncated
            if not over:
                if node.asking or node.pending or not all(edge.closed for edge in node.edges):
                    return
                if len(node.edges) < settings.max_children and node.duplicates < settings.saturation:
                    return
            node.closed = True
            edge = node.edge
            if edge is None:
                return
            if over and not edge.closed:
                return
            edge.closed = True
            node = edge.parent

    def _fill_shadows(self, ticket: Ticket) -> None:
        """Give simulations that share this one's leaf what it executed; needed after a replay from the log."""
        if ticket.group is None or ticket.draw:
            return
        shadow, rank = ticket.group.shadow, ticket.rank
        for position, link in enumerate(ticket.chain):
            ahead = 0
            if position or ticket.edge is None:
                for i, action in enumerate((link.action, *[other for other, _ in link.others])):
                    slot = shadow.slot(rank + i)
                    if slot.value is EMPTY:
                        slot.value = action
                canonical = self._opening.canonical if self._opening else None
                assert canonical is not None  # opened before
                for other in shadow.samples[:rank]:
                    if other.value is not EMPTY and not isinstance(other.value, Exception):
                        ahead += canonical(other.value) == link.key
                child = shadow.children.setdefault(link.key, Shadow(link.seed))
            else:
                assert position == 0  # only the first action can be the tree's own
                child, ahead = shadow, rank
            if child.value is EMPTY and link.outcome is not None:
                child.value, child.context = link.outcome, link.context
            shadow, rank = child, ahead


def _same(one: Any, other: Any) -> bool:
    return one is other or (one.text == other.text and one.token_ids == other.token_ids)


def _same_history(one: Context | None, other: Context | None) -> bool:
    while one is not other:
        if one is None or other is None or one.observation != other.observation:
            return False
        if not _same(one.action, other.action):
            return False
        one, other = one.parent, other.parent
    return True

