from __future__ import annotations

import pytest

from offline_agent.preferences.pairs.comparison import PolicyValue, as_evidence, policy_values
from offline_agent.records import Action
from tests.helpers import preferences as kit


def test_weights_by_proposals_not_by_visits() -> None:
    tree = kit.fan((9, 1))
    kit.chain(tree, tree.edges[0], [("A", 1, 1.0), ("B", 3, 0.0)])
    values = policy_values(tree)
    assert values[0].mean == pytest.approx(0.25)
    assert values[1] == PolicyValue(1.0, 0.0) and values[2] == PolicyValue(0.0, 0.0)
    assert 0.02 < values[0].variance < 0.12


def test_more_draws_are_surer() -> None:
    variances = []
    for times in (1, 4, 16):
        tree = kit.fan((3, 1))
        kit.chain(tree, tree.edges[0], [("A", 3 * times, 1.0), ("B", times, 0.0)])
        variances.append(policy_values(tree)[0].variance)
    assert variances[0] > 2 * variances[1] > 4 * variances[2]


def test_a_single_rollout_is_one_observation_however_long() -> None:
    tree = kit.fan((1, 1))
    node = tree.edges[0].child
    assert node is not None
    for _ in range(5):
        edge = kit.sided(tree, node, kit.act("A"), 1, 1)
        node = edge.child
        assert node is not None
    kit.end(edge, 1.0)
    evidence = as_evidence(policy_values(tree)[0])
    assert 0.4 < evidence.count < 1.5 and evidence.mean == 1.0


def test_an_action_nobody_executed_adds_doubt_not_value() -> None:
    tree = kit.fan((3, 1))
    kit.chain(tree, tree.edges[0], [("A", 3, 1.0), ("B", 1, 0.0)])
    before = policy_values(tree)[0]
    node = tree.edges[0].child
    assert node is not None
    for _ in range(4):
        tree.add_proposal(node, kit.act("look"), "key look")
    after = policy_values(tree)[0]
    assert after.mean == pytest.approx(before.mean) and after.variance > before.variance


def test_quarantined_and_unjudged_ends_are_unknown_truncated_ones_are_worth_nothing() -> None:
    tree = kit.fan((1, 1), (1, 1), (1, 1))
    kit.chain(tree, tree.edges[0], [("A", 1, 1.0), ("B", 1, 0.0)])
    tree.edges[4].quarantined = "noise"
    kit.end(tree.edges[1], None)
    tree.edges[2].child.cut = "max_steps"  # type: ignore[union-attr]
    values = policy_values(tree)
    assert values[0].mean == 1.0 and 4 not in values and 1 not in values and values[2].mean == 0.0


def test_a_turn_that_never_ends_is_worth_nothing_though_nobody_executed_it() -> None:
    tree = kit.fan((1, 1), (1, 1))
    kit.chain(tree, tree.edges[0], [("A", 1, 1.0)])
    tree.add_proposal(tree.edges[0].child, Action("on and on", fault="no_end"), "!no_end")  # type: ignore[arg-type]
    assert policy_values(tree)[0].mean == 1.0  # not known to be endless
    tree.edges[-1].fault = "no_end"
    assert policy_values(tree)[0].mean == 0.5


def test_success_counts_whole_ends_only() -> None:
    tree = kit.fan((1, 1))
    kit.chain(tree, tree.edges[0], [("A", 1, 1.0), ("B", 1, 0.5)])
    assert policy_values(tree)[0].mean == 0.75 and policy_values(tree, use_success=True)[0].mean == 0.5


def test_evidence_never_counts_for_more_than_its_rollouts() -> None:
    assert as_evidence(PolicyValue(0.5, 0.0001)).count > 100
    assert as_evidence(PolicyValue(0.5, 0.0001), most=7).count == pytest.approx(7)
    assert as_evidence(PolicyValue(0.5, 0.05)).count == pytest.approx(5, rel=0.01)


def test_an_end_whose_verdicts_may_differ_is_worth_their_mean() -> None:
    tree = kit.fan((3, 1))
    kit.end(tree.edges[0], 1.0)  # the first verdict alone
    assert policy_values(tree)[0] == PolicyValue(1.0, 0.0)
    noisy = policy_values(tree, exact=False)[0]
    assert noisy.mean == 0.75 and 0.02 < noisy.variance < 0.1
