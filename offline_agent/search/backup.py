"""What a commit does to its tree: proposals merge, nodes join, values go up, what is exhausted closes.

A commit depends on the tree and the ticket alone, so a log of tickets makes the same tree again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from offline_agent.records import POLICY_CUTS, Context
from offline_agent.search.in_flight import Link, Others, Row, Ticket
from offline_agent.search.quarantine import is_noise, quarantine
from offline_agent.search.selection import refresh_priors
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import Edge, Node, SearchTree


class Committer:
    """Applies tickets to trees.

    Args:
        settings: The search's settings.
        segment: The renderer's `segment`, by which prefilled tokens are counted; None counts none.
    """

    def __init__(self, settings: SearchSettings, segment: Callable[[Context], Sequence[int]] | None) -> None:
        self._settings = settings
        self._segment = segment
        self._deterministic = settings.deterministic_verifier
        self._independent = settings.algorithm == "best_of_n"
        self._gamma = settings.gamma
        self._first = settings.proposals
        self._rollouts = settings.simulations if self._independent else settings.proposals

    def commit(self, tree: SearchTree, ticket: Ticket) -> None:
        """Let a simulation that has run to its end change the tree."""
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
        if tree.noisy and is_noise(ticket.path if ticket.edge is None else [*ticket.path, ticket.edge]):
            ticket.value = None  # the branch was quarantined while this was in flight
        last = self._commit_chain(tree, ticket)
        if ticket.index < self._rollouts:
            self._note_first(tree, ticket)
        self._close_from(last)

    def _commit_proposals(self, tree: SearchTree, ticket: Ticket) -> None:
        node = ticket.node
        node.asking = False
        for _, action, key in ticket.drawn:
            self._count(tree, node, action)
            edge, _ = tree.add_proposal(node, action, key, self._first)
            if action.fault == "no_end":
                edge.closed, edge.fault = True, action.fault
        for edge in node.edges:
            score = ticket.critic.get(edge.key)
            if score is not None:
                edge.critic = score
        if node.edges:
            refresh_priors(node)
        if not ticket.drawn:
            node.duplicates += self._settings.saturation  # the policy cannot answer here: ask elsewhere

    def _count(self, tree: SearchTree, node: Node, action: Any) -> None:
        if action.token_ids is not None:
            tree.counters["generated"] += len(action.token_ids)
        if node.samples == 0 and self._segment is not None:
            before = node.context.action
            known = 0 if before is None or before.token_ids is None else len(before.token_ids)
            tree.counters["prefilled"] += len(self._segment(node.context)) - known

    def _commit_chain(self, tree: SearchTree, ticket: Ticket) -> Node:
        """Let the simulation's nodes join the tree and its value go up; return the last node reached."""
        if ticket.rows and ticket.value is not None and (ticket.edge is not None or ticket.draw):
            rows = ticket.rows
            start = ticket.edge or tree.find(ticket.node, rows[0][1])
            assert start is not None  # proposed just now
            if start.child is None and start.quarantined is None:
                last, value = self._graft(tree, ticket, start, rows)
                self._back_up(tree, ticket, ticket.path, value, ticket.node)
                return last
        return self._merge_chain(tree, ticket)

    def _merge_chain(self, tree: SearchTree, ticket: Ticket) -> Node:
        """Walk down from where the simulation left the tree, along what others may have added since."""
        node, edges, chain = ticket.node, ticket.path, ticket.chain
        for position, link in enumerate(chain):
            edge = tree.find(node, link.key)
            if link.sample >= 0 and not (position == 0 and ticket.draw):
                edge = self._commit_link(tree, ticket, node, link)
            assert edge is not None  # proposed just now, or known at issue
            if edge.quarantined is not None:
                ticket.value = None  # as above
            if edge.child is None and ticket.value is not None:
                last, value = self._graft(tree, ticket, edge, chain[position:] if position else chain)
                self._back_up(tree, ticket, edges, value, node)
                return last
            edges = [*edges, edge]
            if link.outcome is None:
                self._commit_fault(tree, ticket, edge, link)
                break
            if edge.child is None:
                self._add_child(tree, edge, link, ticket.greedy).group = ticket.group
                if link.outcome.terminated and (self._deterministic or ticket.cut == "unscored"):
                    edge.closed = True
                if link.outcome.terminated and ticket.cut == "unscored":
                    quarantine(tree, edge, f"verifier: {ticket.error}", self._gamma)
            elif link.context is not edge.child.context and not _same_history(link.context, edge.child.context):
                tree.counters["dropped"] += len(chain) - position - 1
                node = edge.child
                break
            elif edge is ticket.edge and ticket.rank == 0:
                tree.counters["tool_calls"] += 1  # executed again, to be judged again
            node = edge.child  # type: ignore[assignment]  # set just above
            edge.group = None
        else:
            if ticket.cut in POLICY_CUTS:
                self._cut(node, ticket.cut)
        if ticket.mismatch is not None:
            self._quarantine_from(tree, ticket, edges)
        if ticket.value is not None:
            self._back_up(tree, ticket, edges, ticket.value, node)
        return node

    def _commit_link(self, tree: SearchTree, ticket: Ticket, node: Node, link: Link) -> Edge:
        """Merge the proposals behind one link into the tree."""
        edge = tree.find(node, link.key)
        key = link.key
        if self._independent and edge is not None and not _same(edge.actions[0], link.action):
            key = f"{link.key}#{link.sample}.{ticket.index}"  # independent rollouts never share another's turn
        self._count(tree, node, link.action)
        edge, _ = tree.add_proposal(node, link.action, key, self._first)
        self._commit_others(tree, node, link.others)
        refresh_priors(node)
        return edge

    def _commit_others(self, tree: SearchTree, node: Node, others: Others) -> None:
        for action, key in others:
            self._count(tree, node, action)
            edge, _ = tree.add_proposal(node, action, key, self._first)
            if action.fault == "no_end":
                edge.closed, edge.fault = True, action.fault

    def _commit_fault(self, tree: SearchTree, ticket: Ticket, edge: Edge, link: Link) -> None:
        edge.closed = True
        if ticket.mismatch is None and edge.quarantined is None:
            quarantine(tree, edge, link.reason or "unknown fault", self._gamma)

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

    def _graft(self, tree: SearchTree, ticket: Ticket, edge: Edge, links: Sequence[Row]) -> tuple[Node, float]:
        """Add what only this simulation knows, from the unexecuted `edge` on, with the value of its one visit.

        Nothing is looked up or merged here, which matters: nearly all nodes of a tree come this way.

        Returns:
            The last node, and the value that goes up to the parent of `edge`.
        """
        node, value, verdict, gamma = edge.parent, ticket.value, ticket.verdict, self._gamma
        assert value is not None  # the caller looked
        cut = 1 if ticket.cut in POLICY_CUTS else 0
        verified = 1 - cut
        score = 0.0 if verdict is None or verdict.score is None else verdict.score
        success = 1 if verdict is not None and verdict.success else 0
        group = ticket.group if ticket.group is not None and ticket.group.active else None
        greedy, counting = ticket.greedy and node.greedy, self._segment is not None
        nodes, edges, first = tree.nodes, tree.edges, True
        for _, key, action, outcome, context, seed, _, others in links:
            assert outcome is not None and context is not None  # there is a value: nothing went wrong
            if first:
                first, edge.group, edge.visits, edge.value_sum = False, None, 1, value
                edge.verified, edge.score_sum, edge.successes, edge.truncated = verified, score, success, cut
            else:
                if counting or action.token_ids is not None:
                    self._count(tree, node, action)
                logps = action.logps
                logp = sum(logps) / len(logps) if logps else None
                edge = Edge(len(edges), node, key, action, logp, 1.0, 1, value, verified, score, success, cut)
                edges.append(edge)
                node.edges.append(edge)
                node.samples = 1
                if others:
                    self._commit_others(tree, node, others)
                    refresh_priors(node)
            _, _, over, edge.fault, judged, fingerprint, goal, state = outcome
            node = edge.child = Node(
                len(nodes), edge, context, over, judged, fingerprint, goal, state, seed, greedy, 1, value, group
            )
            nodes.append(node)
        tree.counters["tool_calls"] += len(links) - (ticket.cut == "tokens")  # that turn was not executed
        if cut:
            self._cut(node, ticket.cut)
        elif self._deterministic:
            edge.closed = True
        if gamma == 1.0:
            tree.see(value)
            return node, value
        return node, self._discount(tree, edge, value, len(links))

    def _discount(self, tree: SearchTree, edge: Edge, value: float, length: int) -> float:
        """Discount the values of the `length` newest edges up from `edge`; return what goes up to their parent."""
        for _ in range(length):
            edge.value_sum = edge.child.value_sum = value  # type: ignore[union-attr]  # they were just executed
            tree.see(value)
            value *= self._gamma
            edge = edge.parent.edge  # type: ignore[assignment]  # None after the last round at most
        return value

    def _cut(self, node: Node, cut: str | None) -> None:
        """Note that a limit of the policy's own cut the episode at a node."""
        node.cut = cut
        if node.edge is not None:
            node.edge.closed = True

    def _back_up(self, tree: SearchTree, ticket: Ticket, edges: Sequence[Edge], value: float, last: Node) -> None:
        """Back `value` up from `last`, the node at the end of `edges`, to the root."""
        gamma, verdict = self._gamma, ticket.verdict
        tree.simulations += 1
        truncated = ticket.cut in POLICY_CUTS
        score = verdict.score if verdict is not None and verdict.score is not None else 0.0
        success = verdict is not None and verdict.success
        last.visits += 1
        last.value_sum += value
        low, high = tree.low, tree.high
        for edge in reversed(edges):
            edge.visits = visits = edge.visits + 1
            edge.value_sum = total = edge.value_sum + value
            if truncated:
                edge.truncated += 1
            else:
                edge.verified += 1
                edge.score_sum += score
                if success:
                    edge.successes += 1
            mean = total / visits
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
        edge.closed = True
        quarantine(tree, edge, ticket.error or "a replay differed", self._gamma)
        self._close_from(edge.parent)

    def _note_first(self, tree: SearchTree, ticket: Ticket) -> None:
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
        settings = self._settings
        if self._independent:
            return
        while True:
            over = node.terminated or node.cut is not None
            if not over:
                if node.asking or node.pending:
                    return
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

