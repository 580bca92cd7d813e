"""The search of one task: select a leaf, run a simulation from it, commit its result; until a budget is used up.

A simulation is read in this order: `TreeSearch.issue` and `_select` here, `selection` (PUCT, UCT), `simulation`
(expansion, rollout, judgement), `backup`, all of them on a `tree`. `scheduler` runs many of them at once.

Simulation t is issued only after simulation t - L was committed, and simulations are committed in the order of issue.
So a tree is a function of its seed, its settings, the policy and the environment: neither the number of workers nor the
order in which they answer changes it (Liu et al. 2020 count incomplete visits in the same way, without this order).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from offline_agent.envs.pool import Lane
from offline_agent.errors import DataError
from offline_agent.policies.base import ProposeRequest
from offline_agent.records import Context, Task
from offline_agent.search.backup import Backup
from offline_agent.search.environment import Opening, Outcome, TaskEnvironment
from offline_agent.search.event_log import restore_shared, simulation_from_record, simulation_to_record
from offline_agent.search.in_flight import PendingNode, Reward, RolloutRules, SharedLeaf, Simulation
from offline_agent.search.selection import has_enough, proposals_wanted, puct, uct
from offline_agent.search.settings import BudgetSection, SearchSettings
from offline_agent.search.simulation import Calls, simulate
from offline_agent.search.tree import Edge, KnownStates, Node, SearchTree
from offline_agent.seeding import child_seed, derive_seed

__all__ = ["SearchSettings", "TreeSearch"]


class TreeSearch:
    """The search of one task: issue simulations, commit them in order. They are run elsewhere.

    Args:
        task: The task.
        environment: Its environment.
        settings: The search's settings.
        seed: The run's seed.
        critic: Whether proposals are shown to a critic.
        reward: Turns a judged trajectory into the value in [0, 1] that is backed up; None = the verifier's score.
        segment: The renderer's `segment`, by which prefilled tokens are counted; None counts none.
        log: Receives one JSON-serialisable record per commit, before the tree changes; None keeps no log.

    Attributes:
        tree: The tree; None before `open`.
        lane, calls: Where its environment's calls are made, and the calls of its simulations; set by the scheduler.
    """

    lane: Lane
    calls: Calls

    def __init__(
        self,
        task: Task,
        environment: TaskEnvironment,
        settings: SearchSettings,
        seed: int = 0,
        *,
        critic: bool = False,
        reward: Reward | None = None,
        segment: Callable[[Context], Sequence[int]] | None = None,
        log: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.task = task
        self.environment = environment
        self.settings = settings
        self.tree_id = task.task_id
        self.tree: SearchTree | None = None
        self._log = log
        known = KnownStates() if settings.repeated_states == "close" and settings.algorithm == "mcts" else None
        self._backup = Backup(settings, segment, known)
        self._rules = RolloutRules(settings, critic, reward, known)
        self._seed = derive_seed(seed, "tree", self.tree_id)
        self._choose = (
            puct(settings.c_puct, settings.fpu_reduction) if settings.selection == "puct" else uct(settings.c_uct)
        )
        self._opening: Opening | None = None
        self._root_leaf: SharedLeaf | None = None
        self._in_flight: list[Simulation] = []
        self._issued = 0
        self._out_of_time = False
        self._budgeted = settings.budget != BudgetSection()

    # -- selection -----------------------------------------------------------------------------------------------------

    def _select(self, tree: SearchTree) -> Simulation | None:
        """Return the next simulation, with the leaf at which it leaves the tree; None where it has to wait.

        The first ones are plain rollouts from the root. The others go down from the root: at a node that may have more
        children they draw proposals; else they follow the edge of the best score, until one is not executed yet.
        """
        settings, index, root = self.settings, self._issued, tree.nodes[0]
        if settings.algorithm == "best_of_n":  # each rollout is alone, with seeds of its own
            simulation = Simulation(index, [], root)
            simulation.leaf = self._new_root_leaf(root, derive_seed(self._seed, "rollout", index), 1)
            simulation.greedy = index == 0
            return self._mark(simulation)
        if index < settings.proposals:
            assert self._root_leaf is not None  # made by open
            simulation = Simulation(index, [], root)
            simulation.leaf, simulation.rank = self._root_leaf, index
            simulation.greedy = index == 0
            return self._mark(simulation)
        node, choose, most = root, self._choose, settings.max_children
        path: list[Edge] = []
        while True:
            count = proposals_wanted(settings, node) if len(node.edges) < most else 0
            if count:
                return self._drawing(tree, path, node, count)
            edge = choose(tree, node)
            if edge is None:
                return None
            path.append(edge)
            child = edge.child
            if child is None or child.terminated:  # an open terminal is judged again: its verifier may differ
                if node.leaf is not None and node.leaf.active:
                    return None  # simulations that found this node together may be executing this very action
                return self._executing(tree, path[:-1], edge)
            node = child

    def _drawing(self, tree: SearchTree, path: list[Edge], node: Node, count: int) -> Simulation:
        """Return a simulation that draws so many proposals at a node, and executes one of them."""
        node.drawing = True
        draw = range(node.samples, node.samples + count)
        return self._mark(Simulation(self._issued, path, node, draw=draw, commits=tree.commits))

    def _executing(self, tree: SearchTree, path: list[Edge], edge: Edge) -> Simulation:
        """Return a simulation that executes an edge, together with those in flight that do.

        An end that is judged again is judged for each of them.
        """
        simulation = Simulation(self._issued, path, edge.parent, edge)
        if edge.leaf is None or edge.child is not None:
            start = PendingNode(edge.key, child_seed(edge.parent.seed, edge.key))
            edge.leaf = SharedLeaf(start, commits=tree.commits)
        simulation.leaf, simulation.rank = edge.leaf, edge.leaf.size
        simulation.commits = edge.leaf.commits
        edge.leaf.size += 1
        edge.leaf.active += 1
        edge.pending += 1
        return self._mark(simulation)

    @staticmethod
    def _mark(simulation: Simulation) -> Simulation:
        """Count the simulation as an incomplete visit on its way."""
        for edge in simulation.path:
            edge.pending += 1
            edge.parent.pending += 1
        simulation.node.pending += 1
        return simulation

    def _new_root_leaf(self, root: Node, seed: int, size: int) -> SharedLeaf:
        """Return the root as a history that rollouts share; unlike other leaves, it is executed already."""
        assert self._opening is not None  # set by open
        outcome = Outcome(root.context.observation, "user", False, state=self._opening.state)
        return SharedLeaf(PendingNode("", seed, outcome, root.context), size)

    # -- issue, run, commit --------------------------------------------------------------------------------------------

    def issue(self) -> list[Simulation]:
        """Issue what may be issued now; return the new simulations, ready to run."""
        tree, settings, out = self.tree, self.settings, []
        assert tree is not None and self._opening is not None, "open the tree first"
        while tree.stopped is None and len(self._in_flight) < settings.leaves_in_flight:
            reason = self._stop_reason(tree)
            simulation = None if reason is not None or self._awaits_plain(tree) else self._select(tree)
            if simulation is None:
                if not self._in_flight:
                    tree.stopped = reason or "closed"
                break  # a commit of what is in flight may change the answer
            simulation.search = self
            self._issued += 1
            self._in_flight.append(simulation)
            out.append(simulation)
        return out

    def _stop_reason(self, tree: SearchTree) -> str | None:
        """Return why no further simulation may be issued now; None where one may."""
        settings, flight = self.settings, len(self._in_flight)
        if tree.quarantined is not None:
            return "quarantined"
        if self._out_of_time:
            return "seconds"
        if tree.simulations + flight >= settings.simulations:
            return "simulations"
        if settings.until != "spent" and has_enough(settings, tree):
            return settings.until
        if tree.commits + flight >= 16 * settings.simulations + 16:  # bounds faults and repeated proposals
            return "tickets"
        if tree.root.closed and not flight:
            return "closed"
        return self.settings.spent(tree.counters, flight) if self._budgeted else None

    def _awaits_plain(self, tree: SearchTree) -> bool:
        """Return whether the plain rollouts, which decide whether more is needed, are not all committed yet."""
        settings = self.settings
        return settings.until != "spent" and tree.commits < settings.proposals <= self._issued

    def start(self, simulation: Simulation) -> Generator[None, Any, None]:
        """Return a simulation as a coroutine; see `simulation.simulate`."""
        assert self._opening is not None  # a simulation was issued
        return simulate(simulation, self._opening.canonical, self._rules, self.calls)

    def finish(self, simulation: Simulation) -> list[Simulation]:
        """Take a simulation that has run to its end; commit what is in order; return newly issued simulations."""
        simulation.done = True
        simulation.coroutine = None
        out: list[Simulation] = []
        # One commit, then issue: with more commits before an issue, the tree that a simulation sees at its issue would
        # depend on how many happened to be finished.
        while self._in_flight and self._in_flight[0].done:
            if self._log is not None:
                self._log(simulation_to_record(self.tree_id, self._in_flight[0]))
            self._commit()
            out += self.issue()
        return out

    def _commit(self) -> None:
        assert self.tree is not None  # a simulation was issued
        self._backup.commit(self.tree, self._in_flight.pop(0))

    # -- life of a tree ------------------------------------------------------------------------------------------------

    def open(self, opening: Opening) -> None:
        """Start the tree from an opened environment."""
        self._opening = opening
        self.tree = SearchTree(opening.context(self.task), self.tree_id)
        root = self.tree.root
        root.state, root.seed = opening.state, self._seed
        if self._rules.known is not None:
            self._rules.known.add(getattr(opening.state, "fingerprint", None), 0, 0)
        root.greedy = True
        root.leaf = self._root_leaf = self._new_root_leaf(root, self._seed, self.settings.proposals)

    def first_request(self) -> ProposeRequest:
        """Return a request for an action after the first observation."""
        assert self.tree is not None  # opened
        root, settings = self.tree.root, self.settings
        return ProposeRequest(root.context, (root.seed,), settings.temperature, settings.max_tokens)

    def abandon(self, reason: str) -> None:
        """Record that the environment could not be opened; the tree stays empty and quarantined."""
        self.tree = SearchTree(Context(self.task, "", (), None), self.tree_id)
        self.tree.quarantined, self.tree.stopped = reason, "quarantined"

    def stop_for_time(self) -> None:
        """Issue nothing more; what is in flight still commits."""
        self._out_of_time = True

    @property
    def finished(self) -> bool:
        """Nothing is in flight and nothing more will be issued."""
        tree = self.tree
        return tree is not None and tree.stopped is not None and not self._in_flight

    @property
    def in_flight(self) -> tuple[Simulation, ...]:
        """Simulations issued and not yet committed, in order."""
        return tuple(self._in_flight)

    def replay(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Bring the tree to where a log ends, as if every record had just been committed.

        Every simulation is issued again, gets its result from the record in place of a run, and is committed.

        Raises:
            DataError: A record does not fit the tree that the settings and seed lead to.
        """
        for record in records:
            self.issue()
            if not self._in_flight or self._in_flight[0].index != record.get("t"):
                waiting = self._in_flight[0].index if self._in_flight else "none"
                raise DataError(
                    f"the event log of tree {self.tree_id!r} continues with simulation {record.get('t')}, but this "
                    f"run would commit {waiting}: the log belongs to other settings or another version of the code"
                )
            simulation = self._in_flight[0]
            assert self.tree is not None and self._opening is not None  # issue made sure of it
            simulation_from_record(simulation, record, self.tree, self.environment)
            restore_shared(simulation, self._opening.canonical)
            self._commit()
