"""A quarantined branch: nothing of it is left in the sums above it, and a log leads to the same bytes."""

from __future__ import annotations

import math
import random

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.records import Action, Context, Task, Verdict
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import Edge, Node, SearchTree, quarantine
from tests.helpers.search import Guess, Paths, Run, search, tasks


class Drifts(Paths):
    """Answers differently behind one door as time goes by; must be replayed."""

    replay_only = True
    calls_behind_it = 0

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which door.
        """
        seen = super().door(number)
        if self.path == "2":
            Drifts.calls_behind_it += 1
            return seen + " Something moved." * (Drifts.calls_behind_it > 3)
        return seen


class Wobbles(Paths):
    """Answers at random behind many doors; must be replayed."""

    replay_only = True
    noise = random.Random(1)

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which door.
        """
        return super().door(number) + " Something moved." * (self.noise.random() < 0.1)


def searched(settings: SearchSettings, kind: type[Paths] = Drifts, **options: object) -> Run:
    spec = EnvSpec(kind)
    Drifts.calls_behind_it = 0
    return search(spec, Guess(thoughts=False), settings, tasks(spec, 4), live_states=1, **options)  # type: ignore[arg-type]


def sound_sums(tree: SearchTree, node: Node, gamma: float) -> tuple[int, float]:
    """Return the visits of a node and the sum of their values, as the ends below it that are not noise say."""
    if node.terminated or node.truncated:
        assert node.visits and node.value is not None
        return node.visits, node.visits * node.value
    below = [sound_sums(tree, e.child, gamma) for e in node.edges if e.child is not None and e.quarantined is None]
    return sum(visits for visits, _ in below), gamma * sum(value for _, value in below)


def sound(edge: Edge) -> bool:
    return edge.quarantined is None and edge.parent.quarantined is None


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("kind", [Drifts, Wobbles])
@pytest.mark.parametrize("leaves", [1, 4])
def test_values_of_a_quarantined_branch_leave_the_sums_of_its_ancestors(
    kind: type[Paths], leaves: int, gamma: float
) -> None:
    run = searched(SearchSettings(simulations=40, leaves_in_flight=leaves, gamma=gamma), kind)
    took_back = 0
    for one in run.searches.values():
        tree = one.tree
        assert tree is not None
        for node in tree.nodes:
            if node.quarantined is None:
                visits, value = sound_sums(tree, node, gamma)
                assert node.visits == visits and math.isclose(node.value_sum, value, abs_tol=1e-9)
        for edge in tree.edges:
            if edge.quarantined is not None:
                took_back += edge.child is not None and edge.child.visits
                assert (edge.visits, edge.value_sum, edge.verified, edge.successes, edge.truncated) == (0, 0, 0, 0, 0)
            elif edge.child is not None and sound(edge):
                assert edge.visits == edge.child.visits == edge.verified + edge.truncated
                assert math.isclose(edge.value_sum, edge.child.value_sum, abs_tol=1e-9)
    assert took_back > 0


def test_the_range_of_values_is_that_of_what_stands() -> None:
    tree = SearchTree(Context(Task("t", "train", {}), "", (), "start"))
    edges = []
    for number, value in enumerate((0.25, 1.0, 0.5)):
        edge, _ = tree.add_proposal(tree.root, Action(str(number)), str(number))
        node = tree.add_child(edge, tree.root.context.child(edge.actions[0], None, "tool"))
        node.terminated, node.verdict = True, Verdict(value, value == 1.0, "end")
        for end in (edge, node, tree.root):
            end.visits += 2
            end.value_sum += 2 * value
        edge.verified, edge.score_sum, edge.successes = 2, 2 * value, 2 * (value == 1.0)
        tree.see(value)
        edges.append(edge)
    assert (tree.low, tree.high) == (0.25, 1.0)
    quarantine(tree, edges[1], "it moved", 1.0)
    quarantine(tree, edges[1], "it moved again", 1.0)
    assert (tree.low, tree.high) == (0.25, 0.5) and edges[1].quarantined == "it moved"
    assert (tree.root.visits, tree.root.value_sum) == (4, 1.5)
    quarantine(tree, edges[0], "it moved", 1.0)
    quarantine(tree, edges[2], "it moved", 1.0)
    assert tree.low > tree.high and (tree.root.visits, tree.root.value_sum) == (0, 0.0)


@pytest.mark.parametrize("kind", [Drifts, Wobbles])
def test_a_log_of_quarantined_branches_leads_to_the_same_bytes(kind: type[Paths]) -> None:
    settings = SearchSettings(simulations=40)
    whole = searched(settings, kind)
    assert any(edge.quarantined for one in whole.searches.values() for edge in one.tree.edges)  # type: ignore[union-attr]
    assert searched(settings, kind, records=whole.logs).trees == whole.trees
