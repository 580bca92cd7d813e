"""Whatever the settings: each edge is executed once, sums add up, and neither workers nor a restart change the tree."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from offline_agent.envs.base import EnvSpec
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import SearchTree
from tests.helpers.search import Guess, Paths, Run, search, tasks

SPEC = EnvSpec(Paths)


@st.composite
def searches(draw: st.DrawFn) -> SearchSettings:
    """Draw how to search."""
    proposals = draw(st.integers(1, 5))
    selection = draw(st.sampled_from(["puct", "uct"]))
    return SearchSettings(
        simulations=draw(st.integers(1, 40)),
        leaves_in_flight=draw(st.integers(1, 9)),
        proposals=proposals,
        max_children=draw(st.integers(proposals, 10)),  # above 8 edges are looked up in another way
        max_steps=draw(st.integers(1, 4)),
        selection=selection,
        algorithm=draw(st.sampled_from(["mcts", "mcts", "mcts", "best_of_n"])),
        gamma=draw(st.sampled_from([1.0, 0.9])),
    )


POLICIES = st.builds(Guess, thoughts=st.booleans(), doors=st.integers(1, 10))


def tree_of(run: Run) -> SearchTree:
    """Return the only tree of a run."""
    (one,) = run.searches.values()
    assert one.tree is not None
    return one.tree


@given(searches(), POLICIES, st.integers(0, 2**31), st.booleans())
@settings(max_examples=60, deadline=None)
def test_each_edge_is_executed_once_and_sums_add_up(
    how: SearchSettings, policy: Guess, seed: int, threads: bool
) -> None:
    run = search(SPEC, policy, how, tasks(SPEC, 1), seed=seed, workers=3 if threads else 0)
    tree = tree_of(run)
    assert tree.stopped in ("simulations", "closed", "tickets") and tree.simulations <= how.simulations
    if how.algorithm == "mcts":
        assert run.counts.executed == len(tree.nodes) - 1
        most = max(how.max_children, how.leaves_in_flight)  # those in flight together draw one each at a new node
        assert all(len(node.edges) <= most for node in tree.nodes)
    assert run.counts.executed == tree.counters["tool_calls"]
    assert run.counts.replayed == run.counts.mismatches == 0
    assert tree.root.visits == tree.simulations
    for node in tree.nodes:
        assert node is tree.nodes[node.id] and node.pending == 0 and not node.drawing
        assert len({edge.key for edge in node.edges}) == len(node.edges)
        assert all(tree.find(node, edge.key) is edge for edge in node.edges)
        if node.edges:
            assert math.isclose(sum(edge.prior for edge in node.edges), 1.0)
            assert node.samples == sum(edge.count for edge in node.edges)
            assert node.visits >= sum(edge.visits for edge in node.edges)
    for edge in tree.edges:
        assert edge is tree.edges[edge.id] and edge.pending == 0
        assert edge.visits == edge.verified + edge.truncated
        if edge.visits:
            assert edge.child is not None and tree.low - 1e-9 <= edge.value_sum / edge.visits <= tree.high + 1e-9
        if edge.child is not None:
            assert edge.child.edge is edge and edge.child.visits == edge.visits
            assert math.isclose(edge.child.value_sum, edge.value_sum)
            if how.algorithm == "mcts":  # independent rollouts that agree have equal histories, not the same one
                assert edge.child.context.parent is edge.parent.context
    if how.gamma == 1.0:
        ends = sum(edge.score_sum for edge in tree.edges if edge.child is not None and edge.child.terminated)
        assert math.isclose(tree.root.value_sum, ends, abs_tol=1e-9)  # what is cut by max_steps is worth 0


@given(searches(), POLICIES, st.integers(0, 2**31), st.data())
@settings(max_examples=50, deadline=None)
def test_neither_workers_nor_a_restart_change_the_tree(
    how: SearchSettings, policy: Guess, seed: int, data: st.DataObject
) -> None:
    some = tasks(SPEC, 1)
    whole = search(SPEC, policy, how, some, seed=seed)
    crowd = search(SPEC, policy, how, some, seed=seed, workers=3)
    assert (crowd.trees, crowd.logs) == (whole.trees, whole.logs)
    ((name, log),) = whole.logs.items()
    cut = data.draw(st.integers(0, len(log)), label="commits before the restart")
    again = search(
        SPEC, policy, how, some, seed=seed, records={name: log[:cut]}, workers=data.draw(st.sampled_from([0, 3]))
    )
    assert (again.trees, again.logs) == (whole.trees, whole.logs)
