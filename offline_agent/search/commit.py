"""What a commit does to its tree: proposals merge, nodes join, values go up, what is exhausted closes.

A commit depends on the tree and the ticket alone, so a log of tickets makes the same tree again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from offline_agent.records import Context
from offline_agent.search.selection import refresh_priors
from offline_agent.search.settings import SearchSettings
from offline_agent.search.simulation import Link, Ticket
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
            node.duplicates += self._settings.saturation  # the policy cannot answer here: ask elsewhere

    def _count(self, tree: SearchTree, node: Node, action: Any) -> None:
        if action.token_ids is not None:
            tree.counters["generated"] += len(action.token_ids)
        if node.samples == 0 and self._segment is not None:
            before = node.context.action
            known = 0 if before is None or before.token_ids is None else len(before.token_ids)
            tree.counters["prefilled"] += len(self._segment(node.context)) - known

    def _commit_chain(self, tree: SearchTree, ticket: Ticket) -> tuple[Node, list[Edge]]:
        """Let the simulation's nodes join the tree; return the last node reached and the edges from the root to it."""
        node, edges, deterministic = ticket.node, list(ticket.path), self._settings.deterministic_verifier
        group, counting = ticket.group, self._segment is not None
        independent = self._settings.algorithm == "best_of_n"
        for position, link in enumerate(ticket.chain):
            edge = tree.find(node, link.key)
            if link.sample >= 0 and not (position == 0 and ticket.draw):
                if counting or link.action.token_ids is not None:
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
                if len(node.edges) == 1:
                    edge.prior = 1.0
                else:
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
            elif link.context is not edge.child.context and not _same_history(link.context, edge.child.context):
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
        value, gamma, verdict = ticket.value, self._settings.gamma, ticket.verdict
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
        rollouts = self._settings.simulations if self._settings.algorithm == "best_of_n" else self._settings.proposals
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
        settings = self._settings
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

