"""One tree's search: which simulation is issued when. What its commit does to the tree is in `commit`.

Ticket t is issued only after ticket t - L was committed, and tickets commit in order, so a tree is a function of its
seed, its settings, the policy and the environment, however many workers there are and whoever is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from offline_agent.errors import ContextFull, DataError, PolicyError
from offline_agent.policies.base import ProposeRequest
from offline_agent.records import Context, Task, Trajectory
from offline_agent.search.backup import Committer
from offline_agent.search.direct import Direct, is_alone, play
from offline_agent.search.in_flight import EMPTY, Group, Request, Rules, Shadow, Ticket
from offline_agent.search.restore import Opening, Outcome, World
from offline_agent.search.selection import GumbelRoot, puct, uct
from offline_agent.search.serialization import ticket_from_record, ticket_to_record
from offline_agent.search.settings import SearchSettings
from offline_agent.search.simulation import simulate
from offline_agent.search.tree import Edge, Node, SearchTree
from offline_agent.seeding import child_seed, derive_seed

__all__ = ["SearchSettings", "TreeSearch"]

Reward = Callable[[Trajectory], float | None]


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
        self._committer = Committer(settings, segment)
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
        self._select_root = self._select_gumbel if settings.gumbel_root else self._select
        self.direct: Direct | None = None
        self._gumbel: GumbelRoot | None = None
        self._opening: Opening | None = None
        self._root_group: Group | None = None
        self._flight: list[Ticket] = []
        self._issued = 0
        self._out_of_time = False
        self._budgeted = not settings.budget_tokens is settings.budget_tool_calls is settings.budget_prefilled is None

    # -- life of a tree ------------------------------------------------------------------------------------------

    def open(self, opening: Opening) -> None:
        """Start the tree from an opened world."""
        self._opening = opening
        context = Context(self.task, opening.system, opening.tools, opening.observation)
        self.tree = SearchTree(context, self.tree_id)
        root = self.tree.root
        root.state, root.seed = opening.state, self._seed
        root.greedy = True
        root.group = self._root_group = self._new_root_group(root, self._seed, self.settings.proposals)

    def first_request(self) -> ProposeRequest:
        """Return a request for an action after the first observation."""
        assert self.tree is not None  # opened
        root, settings = self.tree.root, self.settings
        return ProposeRequest(root.context, (root.seed,), settings.temperature, settings.max_tokens)

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
            if settings.until != "spent" and tree.tickets < settings.proposals <= self._issued:
                break  # the plain rollouts decide whether more is needed
            ticket = self._next_ticket(tree)
            if ticket is None:
                if not self._flight:
                    tree.stopped = "closed"
                break
            ticket.search = self
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
        if settings.until != "spent" and self._has_enough(tree):
            return settings.until
        if tree.tickets + flight >= 16 * settings.simulations + 16:  # bounds faults and repeated proposals
            return "tickets"
        if tree.root.closed and not flight:
            return "closed"
        return self._exhausted(tree, flight) if self._budgeted else None

    def _has_enough(self, tree: SearchTree) -> bool:
        """Whether the tree holds what `until` asks for."""
        settings, edges = self.settings, tree.root.edges
        if tree.tickets < settings.proposals or not any([edge.successes for edge in edges]):
            return False
        return settings.until == "success" or any([edge.successes < edge.visits for edge in edges])

    def _exhausted(self, tree: SearchTree, flight: int) -> str | None:
        """Return the budget that one more simulation might exceed in the worst case."""
        settings = self.settings
        sampled = tree.counters["generated"] + settings.worst_tokens(flight + 1)
        if settings.budget_tokens is not None and sampled > settings.budget_tokens:
            return "tokens"
        called = tree.counters["tool_calls"] + (flight + 1) * settings.max_steps
        if settings.budget_tool_calls is not None and called > settings.budget_tool_calls:
            return "tool_calls"
        if settings.budget_prefilled is not None and tree.counters["prefilled"] >= settings.budget_prefilled:
            return "prefilled"
        return None

    def _next_ticket(self, tree: SearchTree) -> Ticket | None:
        settings, index = self.settings, self._issued
        if settings.algorithm == "best_of_n":
            ticket = Ticket(index, [], tree.root)
            ticket.group = self._new_root_group(tree.root, derive_seed(self._seed, "rollout", index), 1)
            ticket.greedy = index == 0 and settings.greedy_first
            return self._mark(ticket)
        if index < settings.proposals:
            assert self._root_group is not None  # made by open
            ticket = Ticket(index, [], tree.root)
            ticket.group, ticket.rank = self._root_group, index
            ticket.greedy = index == 0 and settings.greedy_first
            return self._mark(ticket)
        node, choose, most = tree.nodes[0], self._select_root, settings.max_children
        path: list[Edge] = []
        while True:
            count = self._wanted(node) if len(node.edges) < most else 0
            if count:
                ticket = Ticket(index, path, node)
                ticket.draw = range(node.samples, node.samples + count)
                node.asking = True
                return self._mark(ticket)
            edge = choose(tree, node)
            if edge is None:
                return None
            path.append(edge)
            child, choose = edge.child, self._select
            if child is None or child.terminated:  # an open terminal is judged again: its verifier may differ
                if node.group is not None and node.group.active:
                    return None  # those who found this node together may be executing this very action
                ticket = Ticket(index, path[:-1], node)
                ticket.edge = edge
                if edge.group is None:
                    edge.group = Group(child_seed(node.seed, edge.key))
                ticket.group, ticket.rank = edge.group, edge.group.size
                edge.group.size += 1
                edge.group.active += 1
                edge.pending += 1
                return self._mark(ticket)
            node = child

    def _select_gumbel(self, tree: SearchTree, node: Node) -> Edge | None:
        if self._gumbel is None:
            if self._is_drawing(node):
                return None  # its candidates are not all known yet
            settings, seed = self.settings, derive_seed(self._seed, "gumbel")
            self._gumbel = GumbelRoot(settings.gumbel_m, settings.simulations, seed, settings.critic_alpha)
        return self._gumbel.select(tree, node)

    @staticmethod
    def _is_drawing(node: Node) -> bool:
        """Whether simulations in flight draw proposals at a node."""
        return node.asking or (node.group is not None and node.group.active > 0)

    def _wanted(self, node: Node) -> int:
        """Return how many proposals a node that is not full should draw before it is left through one of its edges."""
        settings = self.settings
        group = node.group
        if node.asking or (group is not None and group.active):
            return 0
        edges = len(node.edges)
        room = settings.max_children - edges
        if node.duplicates >= settings.saturation:
            return 0
        if node.edge is None and settings.gumbel_root:
            if self._gumbel is None:
                return min(max(0, settings.gumbel_m - edges), settings.proposals, room)
            if not all([edge.closed for edge in node.edges]):
                return 0  # the budget is divided among the candidates
        if node.samples < settings.proposals:
            return settings.proposals - node.samples
        if all([edge.closed for edge in node.edges]):
            # Nothing below is open: one request decides whether the policy has more to say here.
            return min(max(settings.proposals, settings.saturation - node.duplicates), room)
        limit = settings.widening * math.sqrt(node.visits)
        if edges < limit:
            # The more proposals in a row added nothing, the more it takes to find something new.
            return min(settings.proposals, math.ceil(limit) - edges + node.duplicates, room)
        return 0

    def _mark(self, ticket: Ticket) -> Ticket:
        for edge in ticket.path:
            edge.pending += 1
            edge.parent.pending += 1
        ticket.node.pending += 1
        return ticket

    def _new_root_group(self, root: Node, seed: int, size: int) -> Group:
        assert self._opening is not None  # set by open
        group = Group(seed, size)
        shadow = group.share()
        shadow.context = root.context
        shadow.value = Outcome(root.context.observation, "user", False, state=self._opening.state)
        return group

    # -- run -----------------------------------------------------------------------------------------------------

    def play(self, ticket: Ticket) -> bool:
        """Run a simulation to its end at once, where nothing has to be waited for; return whether that was so."""
        direct, opening = self.direct, self._opening
        if direct is None or self._rules.critic or not is_alone(ticket):
            return False
        assert opening is not None  # a ticket was issued
        play(ticket, opening, self._rules, direct)
        return True

    def start(self, ticket: Ticket) -> Generator[Request, Any, None]:
        """Return a simulation as a coroutine; see `simulation.simulate`."""
        assert self._opening is not None  # a ticket was issued
        return simulate(ticket, self._opening, self._rules)

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
        assert self.tree is not None  # a ticket was issued
        self._flight.pop(0)
        self._committer.commit(self.tree, ticket)

    def _fill_shadows(self, ticket: Ticket) -> None:
        """Give simulations that share this one's leaf what it executed; needed after a replay from the log."""
        if ticket.group is None or ticket.draw:
            return
        shadow, rank = ticket.group.share(), ticket.rank
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
        if ticket.cut in ("policy", "context"):  # it failed this ticket's request, and those who wait for its samples
            error = (ContextFull if ticket.cut == "context" else PolicyError)(str(ticket.error))
            rules = self._rules
            together = 1 if ticket.index < rules.beside_greedy else rules.together
            for i in range(rank, together if rank == 0 else rank + 1):
                if (slot := shadow.slot(i)).value is EMPTY:
                    slot.value = error
