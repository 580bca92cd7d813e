"""Sibling sets: values of all executed actions of a node, pooled over equal states, and their weights."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_agent.preferences.sibling_sets import SiblingSet, SiblingValues, softmax, unfit
from offline_agent.search.tree import SearchTree
from tests.helpers import preferences as kit


def sets_of(*trees: SearchTree, tau: float = 0.2, **options: object) -> list[list[SiblingSet]]:
    values = SiblingValues(**options)  # type: ignore[arg-type]
    for number, tree in enumerate(trees):
        values.add(tree, str(number))
    return [list(values.sets(tree, str(number), tau)) for number, tree in enumerate(trees)]


def test_values_and_weights_are_those_of_the_formula() -> None:
    (((found,),)) = sets_of(kit.fan((5, 0), (0, 4), (1, 1)))
    q = [5.5 / 6, 0.5 / 5, 1.5 / 3]
    assert found.values == pytest.approx(q) and found.visits == (5, 4, 2)
    v = (5 * q[0] + 4 * q[1] + 2 * q[2]) / 11
    powers = [math.exp((each - v) / 0.2) for each in q]
    assert found.value == pytest.approx(v) and found.gap == pytest.approx(q[0] - q[1])
    assert found.weights == pytest.approx([power / sum(powers) for power in powers])


def test_an_end_is_worth_its_verdict_unless_verdicts_are_noisy() -> None:
    tree = kit.fan((1, 0), (0, 1))
    kit.end(tree.edges[1], 0.0)
    ((found,),) = sets_of(tree)
    assert found.values == pytest.approx((0.75, 0.0)) and found.visits == (1, 1)
    ((found,),) = sets_of(tree, exact=False)
    assert found.values == pytest.approx((0.75, 0.25))


@pytest.mark.parametrize("ends", list(itertools.product((0.0, 1.0), repeat=3)))
def test_ends_that_contradict_each_other_settle_nothing_in_whatever_order(ends: tuple[float, ...]) -> None:
    trees = []
    for value in ends:
        tree = kit.fan((3, 0), (0, 1))
        kit.end(tree.edges[1], value)
        tree.root.fingerprint = "here"
        trees.append(tree)
    ((found,), *_) = sets_of(*trees)
    settled = ends[0] if len(set(ends)) == 1 else (sum(ends) + 0.5) / 4
    assert found.values[1] == pytest.approx(settled)


def test_only_executed_actions_with_an_estimate_are_in_a_set() -> None:
    tree = kit.fan((3, 0), (0, 3), (1, 1), (2, 0), (0, 0), (0, 2))
    tree.add_proposal(tree.root, kit.act("look"), "key look")  # never executed
    tree.edges[2].quarantined = "noise"
    assert tree.edges[3].child is not None
    tree.edges[3].child.cut = "max_steps"
    ((found,),) = sets_of(tree)
    assert [edge.id for edge in found.edges] == [0, 1, 5]
    tree.quarantined = "noise"
    assert sets_of(tree) == [[]]


def test_nodes_that_say_nothing_are_named() -> None:
    ((even,),) = sets_of(kit.fan((0, 3), (0, 3)))
    assert even.weights == (0.5, 0.5) and unfit(even, 0.1) == "its values differ by less than 0.1"
    ((clear,),) = sets_of(kit.fan((3, 0), (0, 3)))
    assert unfit(clear, 0.2) is None
    clear.edges[0].fault = "invalid_json"
    assert unfit(clear, 0.2) == "its best action is a malformed call"
    clear.edges[0].fault = "tool_error"
    assert unfit(clear, 0.2) == "its best action is a call that the tool refused"
    clear.edges[0].fault, clear.edges[1].fault = None, "invalid_json"
    assert unfit(clear, 0.2) is None  # a malformed call may be the worse one


def two_trees() -> tuple[SearchTree, SearchTree]:
    """Return trees of one task whose roots are one state: A went well in the first, and badly in the second."""
    one, two = kit.fan((3, 0), (0, 3)), kit.fan((0, 3), (0, 1))
    one.root.fingerprint = two.root.fingerprint = "here"
    return one, two


def test_equal_states_share_their_values_as_far_as_is_asked() -> None:
    pooled = ((3.5 / 7, 0.5 / 5), (6, 4))
    for found in sets_of(*two_trees(), pool="task"):
        assert (found[0].values, found[0].visits) == (pytest.approx(pooled[0]), pooled[1])
    for pool in ("none", "tree"):
        one, two = sets_of(*two_trees(), pool=pool)
        assert one[0].values == pytest.approx((3.5 / 4, 0.5 / 4)) and two[0].values == pytest.approx((0.5 / 4, 0.5 / 2))
    other = kit.fan((0, 3), (0, 1), of=kit.task("other"))
    other.root.fingerprint = "here"
    one, _ = sets_of(two_trees()[0], other, pool="task")
    assert one[0].values == pytest.approx((3.5 / 4, 0.5 / 4))  # another task is another state
    one, two = sets_of(kit.fan((3, 0), (0, 3)), kit.fan((0, 3), (0, 1)), pool="task")  # no fingerprints
    assert one[0].values == pytest.approx((3.5 / 4, 0.5 / 4))


def test_nodes_of_one_tree_in_one_state_share_their_values() -> None:
    tree = kit.fan((2, 0), (0, 2))
    assert tree.edges[0].child is not None
    below = tree.edges[0].child
    kit.sided(tree, below, kit.act("A"), 0, 2)
    kit.sided(tree, below, kit.act("B"), 0, 2)
    tree.root.fingerprint = below.fingerprint = "here"
    ((root, deeper),) = sets_of(tree, pool="tree")
    assert root.values == deeper.values == pytest.approx((2.5 / 5, 0.5 / 5))
    ((root, deeper),) = sets_of(tree, pool="none")
    assert root.values == pytest.approx((2.5 / 3, 0.5 / 3)) and deeper.gap == 0


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.floats(-3, 3), st.floats(0.01, 10))
def test_weights_do_not_depend_on_the_nodes_value(values: list[float], shift: float, tau: float) -> None:
    weights = softmax(values, tau)
    assert math.fsum(weights) == pytest.approx(1) and max(weights) == weights[values.index(max(values))]
    assert softmax([value + shift for value in values], tau) == pytest.approx(weights)
