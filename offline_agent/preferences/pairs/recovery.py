"""Recovery splices: a failed prefix of a tree, and the actions that still bring its state to success.

A policy that learns from successes alone never sees the states that its own mistakes lead to. A splice shows such a
state with the mistake in its history, and teaches what mends it, not the mistake (Agent-R, arXiv 2501.11425).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.preferences.refusals import Refusal
from offline_agent.preferences.replay import BudgetSpent, Replayer, extend, without_logps
from offline_agent.records import Step, Trajectory

if TYPE_CHECKING:
    from offline_agent.search.tree import Edge, Node, SearchTree


class Recoveries:
    """Splices of one tree, each verified by a replay in the environment; docs/pairs.md has the rule.

    Args:
        per_tree: Most splices of a tree.
        failed: Most actions that leave the successful path before the recovery begins.
        join: Trust fingerprints, as a search with `repeated_states=close` does: a splice whose halves meet in equal
            states is put together of what the search executed, without a replay.
    """

    def __init__(self, per_tree: int = 2, failed: int = 3, join: bool = False) -> None:
        if per_tree < 1 or failed < 1:
            raise ConfigError(f"recoveries: per_tree and failed must be at least 1, got {per_tree!r} and {failed!r}")
        self.per_tree = per_tree
        self.failed = failed
        self.join = join

    def mine(self, tree: SearchTree, replayer: Replayer) -> tuple[list[Trajectory], list[Refusal]]:
        """Return the splices in the order of the nodes where the failures leave the path, and the refused ones.

        The steps of a splice are the recovering actions alone: what comes before them, failed actions included, is
        its prompt, and has mask 0. Sampled ids are kept; log-probabilities were measured after another history and are
        dropped.
        """
        found: list[Trajectory] = []
        refusals: list[Refusal] = []
        for left, start, end in self._candidates(tree):
            if len(found) >= self.per_tree:
                break
            before, rest = tree.steps(left), tree.steps(end, after=start)
            if self.join and left.fingerprint is not None and left.fingerprint == start.fingerprint:
                found.append(_joined(left, start, end, rest))
                continue
            name = f"{tree.tree_id}/node {left.id}"
            try:
                replay = replayer.run(tree.task, [step.action for step in (*before, *rest)])
            except BudgetSpent:
                continue  # others may need fewer calls, or none
            except EnvironmentFault as error:
                refusals.append(Refusal("recovery", name, str(error)))
                continue
            whole = len(replay.steps) == len(before) + len(rest)
            if not (whole and replay.verified and replay.terminated):
                refusals.append(Refusal("recovery", name, "the actions that should recover do not lead to success"))
                continue
            steps = without_logps(replay.steps)
            context = extend(replay.context.lineage()[0], steps)
            mended = steps[len(before) :]
            found.append(Trajectory(context, mended, replay.verdict, True, False, "recovery"))
        return found, refusals

    def _candidates(self, tree: SearchTree) -> Iterator[tuple[Node, Node, Node]]:
        """Yield states that failed actions lead to, each with the start and the end of the steps that may recover it.

        They start at an equal state of the tree with a way to success, where the environment has fingerprints and there
        is one; else at the node that the first failed action left.
        """
        best = _shortest(tree)
        known: dict[str, Node] = {}  # of equal states the one with the shortest way to success
        for at in sorted((tree.nodes[id] for id in best), key=lambda at: (best[at.id].depth - at.depth, at.id)):
            if at.fingerprint is not None and at is not best[at.id]:
                known.setdefault(at.fingerprint, at)
        for node in tree.nodes:
            if node.id not in best or node is best[node.id]:
                continue
            for edge in node.edges:
                for left in self._leaving(edge, best):
                    equal = known.get(left.fingerprint) if left.fingerprint is not None else None
                    start = node if equal is None else equal
                    yield left, start, best[start.id]

    def _leaving(self, edge: Edge, best: dict[int, Node]) -> Iterator[Node]:
        """Yield the states after the first failed actions of a branch that has no success, its end left out."""
        node = edge.child
        for _ in range(self.failed):
            if node is None or node.id in best or node.terminated or node.truncated or node.quarantined is not None:
                return
            yield node
            executed = [one.child for one in node.edges if one.child is not None and one.quarantined is None]
            node = executed[0] if executed else None


def _joined(left: Node, start: Node, end: Node, rest: tuple[Step, ...]) -> Trajectory:
    """Return a splice without a replay: after `left`, the steps from `start`, an equal state, to the success `end`."""
    assert end.verdict is not None
    note = f"not replayed: the state after node {left.id} equals that after node {start.id}, whose way was executed"
    verdict = replace(end.verdict, evidence={**end.verdict.evidence, "joined": note})
    steps = without_logps(rest)
    return Trajectory(extend(left.context, steps), steps, verdict, True, False, "recovery")


def _shortest(tree: SearchTree) -> dict[int, Node]:
    """Return the shortest verified success at or below each node that has one, by node id."""
    best: dict[int, Node] = {}
    for end in sorted(tree.terminals(), key=lambda end: (end.depth, end.id)):
        if not end.terminated or end.quarantined is not None or end.verdict is None or end.verdict.success is not True:
            continue
        for node in (end, *(edge.parent for edge in tree.path(end))):
            best.setdefault(node.id, end)
    return best
