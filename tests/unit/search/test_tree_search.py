"""The search as a whole: one result for any number of workers, resume, execution counts, invariants of the sums."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import DataError
from offline_agent.search.serialization import (
    tree_from_json,
    tree_to_json,
    tree_to_networkx,
)
from offline_agent.search.settings import BudgetSection, SearchSettings
from tests.helpers.search import Guess, Paths, search, tasks

SPEC = EnvSpec(Paths)
VARIANTS = [
    SearchSettings(simulations=24),
    SearchSettings(simulations=24, leaves_in_flight=1),
    SearchSettings(simulations=40, leaves_in_flight=8, selection="uct", value="success"),
    SearchSettings(simulations=24, max_steps=2, gamma=0.9),
    SearchSettings(simulations=40, leaves_in_flight=8),
    SearchSettings(simulations=24, algorithm="best_of_n"),
]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("thoughts", [True, False])
def test_the_same_trees_for_any_number_of_workers(settings: SearchSettings, thoughts: bool) -> None:
    some = tasks(SPEC, 3)
    alone = search(SPEC, Guess(thoughts=thoughts), settings, some)
    assert all(one.tree.simulations > 0 for one in alone.searches.values() if one.tree)
    for workers in (1, 4):
        crowd = search(SPEC, Guess(thoughts=thoughts, jitter=0.002), settings, some, workers=workers)
        assert crowd.trees == alone.trees
        assert crowd.logs == alone.logs


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_resume_after_any_commit_ends_in_the_same_tree(settings: SearchSettings) -> None:
    some = tasks(SPEC, 1)
    whole = search(SPEC, Guess(), settings, some)
    (name, log), = whole.logs.items()
    assert len(log) >= 12
    for cut in range(0, len(log) + 1, 1 if settings is VARIANTS[0] else 3):
        again = search(SPEC, Guess(jitter=0.0005 if cut % 7 == 0 else 0.0), settings, some, records={name: log[:cut]},
                       workers=cut % 7 == 0 and 3 or 0)  # fmt: skip
        assert again.trees == whole.trees, f"cut after {cut} commits"
        assert again.logs[name] == log


def test_a_log_of_another_search_is_refused() -> None:
    some = tasks(SPEC, 1)
    (name, log), = search(SPEC, Guess(), SearchSettings(simulations=8), some).logs.items()
    with pytest.raises(DataError, match="event log"):
        search(SPEC, Guess(), SearchSettings(simulations=8), some, records={name: log[2:]})


@pytest.mark.parametrize("leaves", [1, 4, 8])
@pytest.mark.parametrize("workers", [0, 3])
def test_each_edge_is_executed_once(leaves: int, workers: int) -> None:
    Paths.calls.clear()
    settings = SearchSettings(simulations=64, leaves_in_flight=leaves)
    run = search(SPEC, Guess(), settings, tasks(SPEC, 4), workers=workers)
    edges = sum(node.edge is not None for one in run.searches.values() for node in one.tree.nodes)  # type: ignore[union-attr]
    assert run.counts.executed == len(Paths.calls) == edges
    assert len(set(Paths.calls)) == len(Paths.calls)
    assert run.counts.replayed == 0


def test_evicted_states_are_replayed_to_the_same_tree() -> None:
    settings = SearchSettings(simulations=48)
    roomy = search(SPEC, Guess(), settings, tasks(SPEC, 2))
    tight = search(SPEC, Guess(), settings, tasks(SPEC, 2), live_states=1)
    assert tight.trees == roomy.trees
    assert tight.counts.replayed > 0


@pytest.mark.parametrize("settings", VARIANTS[:5], ids=str)
def test_sums_add_up(settings: SearchSettings) -> None:
    run = search(SPEC, Guess(), settings, tasks(SPEC, 3))
    for one in run.searches.values():
        tree = one.tree
        assert tree is not None
        assert [node.id for node in tree.nodes] == list(range(len(tree.nodes)))
        assert tree.root.visits == tree.simulations
        for node in tree.nodes:
            assert node.pending == 0 and not node.drawing
            if node.edges:
                assert math.isclose(sum(edge.prior for edge in node.edges), 1.0)
                assert node.samples == sum(edge.count for edge in node.edges)
                assert node.visits >= sum(edge.visits for edge in node.edges)
            assert len({edge.key for edge in node.edges}) == len(node.edges) <= settings.max_children
        for edge in tree.edges:
            assert edge.pending == 0
            assert edge.visits == edge.verified + edge.truncated
            assert edge.child is None or edge.child.visits == edge.visits
            if edge.exact and settings.value == "reward":
                assert edge.value == edge.child.verdict.score  # type: ignore[union-attr]
            if edge.child is not None:
                assert edge.child.context.action is edge.actions[0]


def test_search_beats_the_policy() -> None:
    run = search(SPEC, Guess(skill=0.25, doors=8), SearchSettings(simulations=64), tasks(SPEC, 16))
    plain, best = [], []
    for one in run.searches.values():
        tree = one.tree
        assert tree is not None
        plain += [r["success"] for r in tree.first_rollouts if not r["greedy"]]
        best.append(max(n.verdict.score for n in tree.terminals() if n.verdict and n.verdict.score is not None))
    assert sum(s == 1.0 for s in best) / len(best) > sum(plain) / len(plain) + 0.3


def test_first_rollout_is_greedy_and_the_first_rollouts_are_the_policys_own() -> None:
    run = search(SPEC, Guess(), SearchSettings(simulations=12), tasks(SPEC, 3))
    for one in run.searches.values():
        tree = one.tree
        assert tree is not None
        assert [r["greedy"] for r in tree.first_rollouts] == [True, False, False, False]
        greedy = [node for node in tree.nodes if node.greedy]
        code = str(one.task.args["code"])
        assert [n.context.action.call.arguments["number"] for n in greedy[1:]] == [(int(c) + 1) % 10 for c in code]  # type: ignore[union-attr]


def test_a_node_is_never_exhausted_by_its_first_request() -> None:
    settings = SearchSettings(simulations=64, saturation=1)
    run = search(SPEC, Guess(skill=0.8, doors=3, thoughts=False), settings, tasks(SPEC, 12))
    closed = [node for one in run.searches.values() for node in one.tree.nodes if node.closed and node.edges]  # type: ignore[union-attr]
    assert any(len(node.edges) == 1 for node in closed)
    assert all(node.samples > settings.proposals for node in closed)


def test_trees_do_not_close_while_much_of_what_the_policy_would_do_is_untried() -> None:
    """The policy takes each of four doors with a probability of at least 0.175 at the root."""

    def closed_early(saturation: int) -> float:
        settings = SearchSettings(simulations=64, saturation=saturation)
        run = search(SPEC, Guess(thoughts=False), settings, tasks(SPEC, 20))
        trees = [one.tree for one in run.searches.values() if one.tree is not None]
        return sum(tree.stopped == "closed" and len(tree.root.edges) < 4 for tree in trees) / len(trees)

    assert closed_early(1) > 0.4
    assert closed_early(SearchSettings().saturation) <= 0.05


def test_a_closed_root_ends_the_search_early() -> None:
    settings = SearchSettings(simulations=500, saturation=20)  # both doors are drawn at every node
    run = search(SPEC, Guess(skill=0.0, doors=2, thoughts=False), settings, tasks(SPEC, 1))
    (one,) = run.searches.values()
    assert one.tree is not None and one.tree.stopped == "closed"
    assert one.tree.root.closed and len(one.tree.nodes) == 1 + 2 + 4 + 8


@pytest.mark.parametrize(
    ("budget", "counter"), [("tokens", "generated"), ("tool_calls", "tool_calls")]
)
def test_budgets_are_never_exceeded(budget: str, counter: str) -> None:
    for limit in (0, 40, 60):
        share = BudgetSection(**{budget: 2 * limit + 1}).share(2)
        settings = SearchSettings(simulations=500, action_tokens=3, max_steps=4, budget=share)
        run = search(SPEC, Guess(skill=0.1, doors=10), settings, tasks(SPEC, 2))
        for one in run.searches.values():
            assert one.tree is not None
            assert one.tree.counters[counter] <= limit
            assert one.tree.stopped == budget
            assert limit < 40 or one.tree.simulations > 0


def test_json_round_trip_and_graph() -> None:
    run = search(SPEC, Guess(), SearchSettings(simulations=24), tasks(SPEC, 1))
    (one,) = run.searches.values()
    assert one.tree is not None
    data = tree_to_json(one.tree)
    again = tree_from_json(data)
    assert tree_to_json(again) == data
    assert again.steps(again.nodes[-1]) == one.tree.steps(one.tree.nodes[-1])
    assert tree_to_networkx(one.tree).number_of_edges() == len(one.tree.edges)
    with pytest.raises(DataError, match="schema version"):
        tree_from_json({"graph": {"schema_version": 99}})


def test_wrong_settings_are_refused_all_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        SearchSettings(simulations=0, selection="ucb", gamma=2, gama=0.9)
    assert caught.value.error_count() == 4


@pytest.mark.parametrize("until", ["success", "contrast"])
def test_a_tree_grows_only_where_plain_attempts_left_something_open(until: str) -> None:
    settings = SearchSettings(simulations=8, until=until)
    trees = [one.tree for one in search(SPEC, Guess(skill=0.1, doors=10), settings, tasks(SPEC, 40)).searches.values()]
    stopped = {tree.stopped for tree in trees if tree is not None}
    assert stopped == {until, "simulations"}
    for tree in trees:
        assert tree is not None
        successes = sum(edge.successes for edge in tree.root.edges)
        plain = [one["success"] for one in tree.first_rollouts]
        if tree.stopped == until:
            assert successes and (until == "success" or successes < tree.simulations)
        else:
            assert tree.simulations == 8
        if any(plain) and (until == "success" or not all(plain)):
            assert tree.simulations == settings.proposals  # the attempts were enough


def test_what_is_enough_does_not_depend_on_workers() -> None:
    settings = SearchSettings(simulations=24, until="success")
    alone, crowd = (search(SPEC, Guess(jitter=j), settings, tasks(SPEC, 8), workers=w) for j, w in ((0, 1), (0.001, 4)))
    assert crowd.trees == alone.trees and crowd.logs == alone.logs
