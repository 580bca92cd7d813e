"""The likeliest untried action of a tree, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from offline_agent.records import Action, Context, Task, ToolCall
from offline_agent.search.deviations import Deviations, probability
from offline_agent.search.tree import Edge, Node, SearchTree


def tree() -> SearchTree:
    return SearchTree(Context(Task("t", "train", {}), "Open.", (), "A door."))


def propose(into: SearchTree, node: Node, key: str, chance: float | None, text: str = "") -> Edge:
    """Draw an action that the policy gives this probability, in two tokens."""
    logps = None if chance is None else (math.log(chance) / 2,) * 2
    action = Action(text or key, "", ToolCall(key, {}), token_ids=None if logps is None else (1, 2), logps=logps)
    return into.add_proposal(node, action, key)[0]


def execute(into: SearchTree, edge: Edge) -> Node:
    return into.add_child(edge, edge.parent.context.child(edge.actions[0], "seen"))


def order(into: SearchTree, steps: int, most: int = 8) -> Sequence[tuple[int, str | None]]:
    """Return the places that are chosen one after the other: a node, and the edge that is executed there."""
    deviations, found = Deviations(most, 8), []
    for _ in range(steps):
        place = deviations.select(into)
        if place is None:
            break
        node, edge = place
        found.append((node.id, None if edge is None else edge.key))
        if edge is None:
            node.drawing = True  # until its simulation is committed
        else:
            edge.closed = True
    return found


def test_the_likeliest_untried_action_comes_first_wherever_it_is() -> None:
    one = tree()
    sure = execute(one, propose(one, one.root, "on", 0.7))
    propose(one, one.root, "back", 0.2)
    unsure = execute(one, propose(one, sure, "left", 0.4))
    propose(one, unsure, "open", 0.95)
    propose(one, unsure, "shut", 0.05)
    # unknown: 0.1 at the root, 0.6 at node 1, 0.0 at node 2
    assert order(one, 9) == [(2, "open"), (1, None), (0, "back"), (0, None), (2, "shut")]


def test_wordings_of_one_action_add_up_and_a_request_that_adds_nothing_counts_against_its_node() -> None:
    one = tree()
    edge = propose(one, one.root, "on", 0.3)
    propose(one, one.root, "on", 0.3, "go on")
    assert probability(edge) == pytest.approx(0.6)
    propose(one, one.root, "on", 0.3, "on")  # the same text again
    assert probability(edge) == pytest.approx(0.6) and one.root.duplicates == 2
    below = execute(one, edge)
    propose(one, below, "left", 0.8).closed = True
    assert order(one, 2) == [(1, None), (0, None)]  # 0.2 before 0.4 / 3


def test_without_log_probabilities_shares_of_the_proposals_stand_for_them() -> None:
    one = tree()
    for key in ("on", "on", "on", "back"):
        propose(one, one.root, key, None)
    assert probability(one.root.edges[0]) is None
    assert order(one, 3) == [(0, "on"), (0, "back"), (0, None)]


def test_what_is_closed_full_over_or_in_quarantine_is_passed_over() -> None:
    one = tree()
    edges = [propose(one, one.root, key, 0.2) for key in ("on", "back", "up")]
    nodes = [execute(one, edge) for edge in edges]
    propose(one, nodes[0], "left", 0.9)
    edges[0].quarantined = "noise"
    nodes[1].terminated = True
    edges[2].closed = True
    assert order(one, 9, most=3) == []
    assert order(one, 9, most=4) == [(0, None)]


def test_what_simulations_in_flight_execute_or_draw_is_not_chosen_again() -> None:
    """Alone catches a simulation that repeats what another is doing, and so learns nothing new."""
    one = tree()
    likeliest, second = (propose(one, one.root, key, chance) for key, chance in (("on", 0.6), ("back", 0.3)))
    likeliest.pending = 1
    assert order(one, 1) == [(0, "back")]
    second.closed, one.root.drawing = False, True
    assert order(one, 1) == []
