"""Backup: a finished simulation joins its tree, its value goes up to the root, and exhausted nodes close.

`Backup.commit` is the only place where a tree changes after its root was made. A commit depends on the tree and the
simulation alone, so the simulations of an event log make the same tree again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offline_agent.errors import EnvironmentFault
from offline_agent.records import POLICY_CUTS, Action, Context
from offline_agent.search.in_flight import PendingNode, Simulation, Transition
from offline_agent.search.nodes import ANSWERED, WORDED, Edge, Node, same_action, same_history
from offline_agent.search.selection import refresh_priors
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import KnownStates, SearchTree, back_up, quarantine


class Backup:
    """Commits simulations to trees.

    Args:
        settings: The search's settings.
        segment: The renderer's `segment`, by which prefilled tokens are counted; None counts none.
        known: Receives the state of every node; None where nobody asks for them.
    """

    def __init__(
        self,
        settings: SearchSettings,
        segment: Callable[[Context], Sequence[int]] | None,
        known: KnownStates | None = None,
    ) -> None:
        self._settings = settings
        self._segment = segment
        self._known = known
        self._deterministic = settings.deterministic_verifier
        self._independent = settings.algorithm == "best_of_n"
        self._gamma = settings.gamma
        self._first = settings.proposals
        self._rollouts = settings.simulations if self._independent else settings.proposals

    def commit(self, tree: SearchTree, simulation: Simulation) -> None:
        """Apply a simulation that has run to its end."""
        tree.commits += 1
        for edge in simulation.path:
            edge.pending -= 1
            edge.parent.pending -= 1
        simulation.node.pending -= 1
        if simulation.edge is not None:
            simulation.edge.pending -= 1
        if simulation.leaf is not None:
            simulation.leaf.leave()
        if simulation.draw:
            self._add_drawn(tree, simulation)
        if tree.noisy:
            path = simulation.path if simulation.edge is None else [*simulation.path, simulation.edge]
            if any([edge.quarantined is not None for edge in path]):
                simulation.value = None  # the branch was quarantined while this simulation was in flight
        before = tree.counters["tool_calls"]
        last = self._join(tree, simulation)
        if self._independent:  # it executed every turn itself, also those that the tree had
            executed = len(simulation.transitions) - (simulation.cut == "tokens")
            tree.counters["tool_calls"] = before + executed
        if simulation.index < self._rollouts:
            verdict, steps = simulation.verdict, len(simulation.transitions)
            tree.note_first(verdict, simulation.cut, steps, simulation.greedy)
        self._close_from(last)

    # -- proposals -----------------------------------------------------------------------------------------------------

    def _add_drawn(self, tree: SearchTree, simulation: Simulation) -> None:
        """Merge the proposals drawn at the leaf, and the critic's scores."""
        node = simulation.node
        node.drawing = False
        for _, action, key in simulation.drawn:
            self._add_proposal(tree, node, action, key)
        if simulation.critic:
            for edge in node.edges:
                edge.critic = simulation.critic.get(edge.key, edge.critic)
        if node.edges:
            refresh_priors(node)
        if not simulation.drawn:
            node.duplicates += self._settings.saturation  # the policy cannot answer here: ask elsewhere

    def _add_proposal(self, tree: SearchTree, node: Node, action: Action, key: str) -> None:
        self._count(tree, node, action)
        edge, _ = tree.add_proposal(node, action, key, self._first)
        if action.fault == "no_end":
            edge.closed, edge.fault = True, action.fault  # it cannot be executed

    def _count(self, tree: SearchTree, node: Node, action: Action) -> None:
        if action.token_ids is not None:
            tree.counters["generated"] += len(action.token_ids)
        if node.samples == 0 and self._segment is not None:
            before = node.context.action
            known = 0 if before is None or before.token_ids is None else len(before.token_ids)
            tree.counters["prefilled"] += len(self._segment(node.context)) - known

    # -- the new nodes -------------------------------------------------------------------------------------------------

    def _join(self, tree: SearchTree, simulation: Simulation) -> Node:
        """Let the simulation's transitions join the tree, and back its value up; return the last node reached.

        Simulations committed since the issue may have added the first of these transitions. The walk goes down along
        them, and what only this simulation knows is added below.
        """
        node, edges, transitions = simulation.node, simulation.path, simulation.transitions
        for position, transition in enumerate(transitions):
            sample, _, reached = transition
            outcome, context = reached.outcome, reached.context
            if sample >= 0 and not (position == 0 and simulation.draw):
                edge: Edge | None = self._add_sample(tree, simulation, node, transition)
            else:
                edge = tree.find(node, reached.key)
            assert edge is not None  # proposed just now, or known at issue
            if edge.quarantined is not None:
                simulation.value = None  # as in `commit`
            if edge.child is None and simulation.value is not None:
                rest = transitions[position:] if position else transitions
                last, value = self._add_chain(tree, simulation, edge, rest)
                self._back_up(tree, simulation, value, node)
                return last
            edges = [*edges, edge]
            if isinstance(outcome, EnvironmentFault):
                self._close_faulty(tree, simulation, edge, outcome)
                break
            if edge.child is None:
                self._add_child(tree, edge, reached, simulation.greedy).leaf = simulation.leaf
                if outcome.terminated and (self._deterministic or simulation.cut == "unscored"):
                    edge.closed = True
                if outcome.terminated and simulation.cut == "unscored":
                    quarantine(tree, edge, f"verifier: {simulation.error}", self._gamma)
            elif context is not edge.child.context and not same_history(context, edge.child.context):
                # an end that was judged again showed something else; independent rollouts have edges of their own
                node, edge.leaf = edge.child, None  # the next simulation here begins a history of its own
                break
            elif edge is simulation.edge and simulation.rank == 0:
                tree.counters["tool_calls"] += 1  # executed again, to be judged again
            node = edge.child  # type: ignore[assignment]  # set just above
            edge.leaf = None
        else:
            if simulation.cut in POLICY_CUTS:
                self._cut(node, simulation.cut)
            elif simulation.cut == "repeated" and node.edge is not None:
                node.closed = node.edge.closed = True
                node = node.edge.parent  # which may have nothing else that is open
        if simulation.mismatch is not None:
            self._quarantine_mismatch(tree, simulation, edges)
        if simulation.value is not None:
            self._back_up(tree, simulation, simulation.value, node)
        return node

    def _add_sample(self, tree: SearchTree, simulation: Simulation, node: Node, transition: Transition) -> Edge:
        """Merge the proposal behind one transition of a rollout."""
        sample, action, reached = transition
        key = reached.key
        if self._independent and (edge := tree.find(node, key)):  # they never share another's turn, nor its answer
            if not same_action(edge.actions[0], action):
                key = f"{key}{WORDED}{sample}.{simulation.index}"
            elif edge.child is not None and not same_history(reached.context, edge.child.context):
                key = f"{key}{ANSWERED}{sample}.{simulation.index}"
        self._count(tree, node, action)
        edge, _ = tree.add_proposal(node, action, key, self._first)
        refresh_priors(node)
        return edge

    def _add_child(self, tree: SearchTree, edge: Edge, reached: PendingNode, greedy: bool) -> Node:
        """Add one executed transition without a value."""
        outcome, context = reached.outcome, reached.context
        node = tree.add_child(edge, context)
        tree.counters["tool_calls"] += 1
        edge.fault = outcome.fault
        node.terminated = outcome.terminated
        node.verdict, node.goal, node.fingerprint = outcome.verdict, outcome.goal, outcome.fingerprint
        node.state, node.seed = outcome.state, reached.seed
        node.greedy = greedy and edge.parent.greedy
        if self._known is not None:
            self._known.add(outcome.fingerprint, context.depth, tree.commits)
        return node

    def _add_chain(
        self, tree: SearchTree, simulation: Simulation, edge: Edge, transitions: Sequence[Transition]
    ) -> tuple[Node, float]:
        """Add what only this simulation knows, from the unexecuted `edge` on, with the value of its one visit.

        Nothing is looked up or merged here, which matters: nearly all nodes of a tree come this way.

        Returns:
            The last node, and the value that goes up to the parent of `edge`.
        """
        node, value, verdict, gamma = edge.parent, simulation.value, simulation.verdict, self._gamma
        assert value is not None  # the caller looked
        cut = 1 if simulation.cut in POLICY_CUTS else 0
        verified = 1 - cut
        score = 0.0 if verdict is None or verdict.score is None else verdict.score
        success = 1 if verdict is not None and verdict.success else 0
        leaf = simulation.leaf if simulation.leaf is not None and simulation.leaf.active else None
        greedy, counting = simulation.greedy and node.greedy, self._segment is not None
        nodes, edges, first = tree.nodes, tree.edges, True
        for _, action, reached in transitions:
            if first:
                first, edge.leaf, edge.visits, edge.value_sum = False, None, 1, value
                edge.verified, edge.score_sum, edge.successes, edge.truncated = verified, score, success, cut
            else:
                if counting or action.token_ids is not None:
                    self._count(tree, node, action)
                logps = action.logps
                logp = sum(logps) / len(logps) if logps else None
                edge = Edge(
                    len(edges), node, reached.key, [action], 1, logp, 1.0, 1, value, verified, score, success, cut
                )
                edges.append(edge)
                node.edges.append(edge)
                node.samples = 1
            outcome, context = reached.outcome, reached.context
            _, _, over, edge.fault, judged, fingerprint, goal, state, _ = outcome
            node = edge.child = Node(
                len(nodes), edge, context, over, judged, fingerprint, goal, state, reached.seed, greedy, 1, value, leaf
            )
            nodes.append(node)
            if self._known is not None:
                self._known.add(fingerprint, context.depth, tree.commits)
        tree.counters["tool_calls"] += len(transitions) - (simulation.cut == "tokens")  # that turn was not executed
        if cut:
            self._cut(node, simulation.cut)
        elif self._deterministic:
            edge.closed = True
        if gamma == 1.0:
            tree.see(value)
            return node, value
        return node, self._discount(tree, edge, value, len(transitions))

    def _cut(self, node: Node, cut: str | None) -> None:
        """Record that a limit of the policy's own cut the episode at a node."""
        node.cut = cut
        if node.edge is not None:
            node.edge.closed = True

    # -- the value -----------------------------------------------------------------------------------------------------

    def _back_up(self, tree: SearchTree, simulation: Simulation, value: float, last: Node) -> None:
        verdict, cut = simulation.verdict, simulation.cut in POLICY_CUTS
        score = verdict.score if verdict is not None and verdict.score is not None else 0.0
        back_up(tree, last, value, score, verdict is not None and bool(verdict.success), cut, self._gamma)

    def _discount(self, tree: SearchTree, edge: Edge, value: float, length: int) -> float:
        """Discount the values of the `length` newest edges up from `edge`; return what goes up to their parent."""
        for _ in range(length):
            edge.value_sum = edge.child.value_sum = value  # type: ignore[union-attr]  # they were just executed
            tree.see(value)
            value *= self._gamma
            edge = edge.parent.edge  # type: ignore[assignment]  # None after the last round at most
        return value

    # -- closing and quarantine ----------------------------------------------------------------------------------------

    def _close_from(self, node: Node) -> None:
        """Close what has nothing left to learn, from `node` towards the root."""
        settings = self._settings
        if self._independent:
            return
        while True:
            over = node.terminated or node.cut is not None
            if not over:
                if node.drawing or node.pending:
                    return  # a simulation in flight may still find something here
                if len(node.edges) < settings.max_children and node.duplicates < settings.saturation:
                    return
                for edge in node.edges:
                    if not edge.closed:
                        return
            incoming = node.edge
            if over and incoming is not None and not incoming.closed:
                return  # its verdict may differ the next time
            node.closed = True
            if incoming is None:
                return
            incoming.closed = True
            node = incoming.parent

    def _close_faulty(self, tree: SearchTree, simulation: Simulation, edge: Edge, fault: EnvironmentFault) -> None:
        """Close an edge that the environment could not execute; its branch is noise unless a replay differed above."""
        edge.closed = True
        if simulation.mismatch is None and edge.quarantined is None:
            tree.counters["tool_calls"] += 1  # it was tried; where a replay differed above, it was not
            quarantine(tree, edge, str(fault) or "unknown fault", self._gamma)

    def _quarantine_mismatch(self, tree: SearchTree, simulation: Simulation, edges: list[Edge]) -> None:
        """Quarantine the branch from the edge whose replay differed; the whole tree where that was the reset."""
        depth = simulation.mismatch or 0
        if depth <= 0 or depth > len(edges):
            tree.quarantined = simulation.error
            return
        edge = edges[depth - 1]
        edge.closed = True
        quarantine(tree, edge, simulation.error or "a replay differed", self._gamma)
        self._close_from(edge.parent)
