from __future__ import annotations

from typing import Any

import pytest

from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.preferences.settings import PAIRS, PairRules
from tests.helpers import preferences as kit


def plain(rules: PairRules = PAIRS, **options: Any) -> StepPairs:
    """By the rollouts alone, and siblings say nothing of each other."""
    return StepPairs(rules, second_opinion=False, concentrations=(0.0,), **options)


PLAIN = plain()


def why(rules: StepPairs, tree: object) -> set[str]:
    return {refusal.reason for refusal in rules.mine(tree)[1]}  # type: ignore[arg-type]


def test_a_clear_order_is_a_pair() -> None:
    tree = kit.fan((5, 0), (0, 4))
    (pair,), refusals = PLAIN.mine(tree)
    assert (pair.kind, pair.chosen_edge, pair.rejected_edge, pair.node_id) == ("step", 0, 1, 0)
    assert (pair.q_chosen, pair.q_rejected) == (5.5 / 6, 0.5 / 5)  # posterior means under Beta(½, ½)
    assert (pair.visits_chosen, pair.visits_rejected) == (5, 4)
    assert pair.confidence > 0.99 and pair.prefix is tree.root.context and not refusals
    assert [step.key for step in pair.chosen] == ["key A"] and [step.key for step in pair.rejected] == ["key B"]
    assert pair.verdict_chosen is None and pair.verdict_rejected is None


def test_an_end_that_is_closed_is_no_proof_where_verdicts_may_differ() -> None:
    """A search with a certain verifier closes ends; a judge that is asked later may be none."""
    tree = kit.fan((1, 0), (0, 1))
    for edge, score in zip(tree.root.edges, (1.0, 0.0), strict=True):
        kit.end(edge, score)
        edge.closed = True
    assert len(StepPairs().mine(tree)[0]) == 1
    assert why(StepPairs(exact_terminals=False), tree) == {"fewer than 3 rollouts"}


def test_order_of_the_edges_does_not_matter() -> None:
    (pair,), _ = PLAIN.mine(kit.fan((0, 4), (5, 0)))
    assert (pair.chosen_edge, pair.rejected_edge) == (1, 0)


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        (kit.fan((2, 0), (0, 9)), "fewer than 3 rollouts"),
        (kit.fan((60, 40), (41, 59)), "gap below 0.2"),
        (kit.fan((3, 1), (1, 2)), "P(Q_w > Q_l) below 0.9"),
    ],
)
def test_each_threshold_refuses(tree: object, reason: str) -> None:
    assert PLAIN.mine(tree)[0] == []  # type: ignore[arg-type]
    assert reason in why(PLAIN, tree)


def test_thresholds_are_met_with_equality() -> None:
    tree = kit.fan((5.5, 1.5), (1.5, 5.5))  # posterior means ¾ and ¼
    assert len(plain(PairRules(min_gap=0.5, confidence=0.5)).mine(tree)[0]) == 1
    assert not plain(PairRules(min_gap=0.51, confidence=0.5)).mine(tree)[0]


def test_a_critic_cannot_turn_round_what_the_rollouts_say() -> None:
    tree = kit.fan((5, 0), (0, 4))
    tree.edges[0].critic, tree.edges[1].critic = 0.0, 1.0
    assert PLAIN.mine(tree)[0] == []


def test_partial_credit_counts_in_part() -> None:
    tree = kit.fan((2.25, 0.75), (1.0, 2.0))
    assert PLAIN.mine(tree)[0] == []  # as three successes against one it would be one
    tree = kit.fan((5.0, 1.0), (1.5, 4.5))
    (pair,), _ = PLAIN.mine(tree)
    assert pair.q_chosen == pytest.approx(5.5 / 7) and pair.q_rejected == pytest.approx(2 / 7)


def test_value_success_ignores_partial_credit() -> None:
    tree = kit.fan((9.0, 1.0), (4.0, 6.0))
    tree.edges[0].successes, tree.edges[1].successes = 0, 0
    assert PLAIN.mine(tree)[0] and not plain(value="success").mine(tree)[0]


def test_rollouts_that_used_up_their_steps_scored_nothing() -> None:
    assert PLAIN.mine(kit.fan((4, 0), (3, 1)))[0] == []
    (pair,), _ = PLAIN.mine(kit.fan((4, 0), (3, 1), truncated=(0, 12)))
    assert pair.visits_rejected == 16 and pair.q_rejected == pytest.approx(3.5 / 17)
    assert PLAIN.mine(kit.fan((4, 0), (0, 4), truncated=(20, 0)))[0] == []


def test_never_an_unexecuted_truncated_or_quarantined_child() -> None:
    tree = kit.fan((5, 0), (0, 5), (0, 5))
    tree.edges[1].child.cut = "max_steps"  # type: ignore[union-attr]
    tree.edges[2].quarantined = "it answered differently"
    tree.add_proposal(tree.root, kit.act("look"), "key look")
    pairs, refusals = PLAIN.mine(tree)
    assert pairs == [] and {r.reason for r in refusals} == {"cut by max_steps", "quarantined"}


def test_nothing_below_a_quarantined_edge() -> None:
    tree = kit.fan((5, 0))
    node = tree.edges[0].child
    assert node is not None
    kit.sided(tree, node, kit.act("A"), 5, 0)
    kit.sided(tree, node, kit.act("B"), 0, 5)
    assert len(PLAIN.mine(tree)[0]) == 1
    tree.edges[0].quarantined = "noise"
    assert PLAIN.mine(tree) == ([], [])


def test_an_end_is_known_after_one_visit() -> None:
    tree = kit.fan((1, 0), (0, 4))
    kit.end(tree.edges[0], 1.0)
    (pair,), _ = PLAIN.mine(tree)
    assert pair.verdict_chosen is not None and pair.verdict_chosen.success and pair.verdict_rejected is None
    assert pair.visits_chosen == 1
    noisy = plain(exact_terminals=False)
    assert noisy.mine(tree)[0] == [] and "fewer than 3 rollouts" in why(noisy, tree)


def test_an_end_nobody_could_judge_is_not_known() -> None:
    tree = kit.fan((0, 0), (5, 0))
    kit.end(tree.edges[0], None)
    assert PLAIN.mine(tree)[0] == []


def test_the_critic_may_veto() -> None:
    tree = kit.fan((5, 0), (0, 5))
    tree.edges[0].critic, tree.edges[1].critic = 0.2, 0.7
    assert PLAIN.mine(tree)[0] == [] and "the critic says the opposite" in why(PLAIN, tree)
    tree.edges[1].critic = 0.2
    assert len(PLAIN.mine(tree)[0]) == 1
    tree.edges[1].critic = None
    assert len(PLAIN.mine(tree)[0]) == 1


def test_a_malformed_call_is_never_chosen_but_may_be_rejected() -> None:
    tree = kit.fan((5, 0), (0, 5))
    tree.edges[0].fault = "bad_arguments"
    assert PLAIN.mine(tree)[0] == [] and "the better action is a malformed call" in why(PLAIN, tree)
    tree.edges[0].fault, tree.edges[1].fault = None, "unknown_tool"
    assert len(PLAIN.mine(tree)[0]) == 1


@pytest.mark.parametrize("decisive", [False, True])
def test_a_call_that_the_tool_refused_is_never_chosen_but_may_be_rejected(decisive: bool) -> None:
    rules = plain(PairRules(decisive=decisive))
    tree = kit.fan((5, 0), (0, 5))
    kit.end(tree.edges[1], 0.0)
    tree.edges[0].fault = "tool_error"
    assert rules.mine(tree)[0] == [] and why(rules, tree) == {"the better action is a call that the tool refused"}
    tree.edges[0].fault, tree.edges[1].fault = None, "tool_error"
    assert len(rules.mine(tree)[0]) == 1


def test_at_most_two_per_node_the_surest_first() -> None:
    tree = kit.fan((9, 0), (0, 4), (0, 9), (1, 8))
    pairs, refusals = PLAIN.mine(tree)
    assert len(pairs) == 2 and pairs[0].rejected_edge == 2
    assert "more than 2 pairs of its node" in {r.reason for r in refusals}
    assert len(plain(PairRules(per_node=3)).mine(tree)[0]) == 3


def test_the_second_opinion_undoes_what_the_search_preferred() -> None:
    # The search went on visiting the one good end of A (10 of 11 rollouts); the policy rarely chooses it.
    tree = kit.fan((10, 1), (1, 3))
    kit.chain(tree, tree.edges[0], [("A", 1, 1.0), ("B", 7, 0.0)])
    kit.chain(tree, tree.edges[1], [("A", 2, 1.0), ("B", 6, 0.0)])
    assert [pair.node_id for pair in PLAIN.mine(tree)[0]] == [0, 1, 2]
    pairs, refusals = StepPairs().mine(tree)
    assert [pair.node_id for pair in pairs] == [1, 2] and any("policy-weighted" in r.reason for r in refusals)


def test_the_second_opinion_lowers_the_confidence_stored() -> None:
    tree = kit.fan((10, 0), (0, 10))
    kit.chain(tree, tree.edges[0], [("A", 8, 1.0)])
    kit.chain(tree, tree.edges[1], [("B", 8, 0.0)])
    (plain,), _ = PLAIN.mine(tree)
    (pair,), _ = StepPairs().mine(tree)
    assert 0.9 <= pair.confidence <= plain.confidence


def test_a_closed_child_needs_no_more_visits() -> None:
    tree = kit.fan((1, 0), (0, 1))
    kit.chain(tree, tree.edges[0], [("A", 7, 1.0)])
    kit.chain(tree, tree.edges[1], [("B", 7, 0.0)])
    assert StepPairs().mine(tree)[0] == []
    for edge in tree.edges[:2]:
        edge.closed = True
    (pair,), _ = StepPairs().mine(tree)
    assert pair.visits_chosen == 1 and pair.q_chosen == pytest.approx(0.75, abs=0.01) and 0.9 <= pair.confidence < 1.0


def test_a_closed_child_of_which_nothing_was_judged_is_not_known() -> None:
    tree = kit.fan((0, 0), (5, 0))
    tree.edges[0].closed = True
    assert StepPairs().mine(tree)[0] == []


def test_one_success_settles_an_action_against_one_that_ends_the_episode_in_failure() -> None:
    tree = kit.fan((1, 1), (0, 1), (0, 2))
    better, worse, _ = tree.edges
    kit.end(worse, 0.0)
    rules = plain(PairRules(decisive=True))
    assert PLAIN.mine(tree)[0] == []  # two rollouts are too few
    (pair,), _ = rules.mine(tree)  # and the third action is settled by nothing
    assert (pair.chosen_edge, pair.rejected_edge, pair.confidence) == (better.id, worse.id, 1.0)
    assert pair.q_rejected == 0.0 < pair.q_chosen < 1.0
    assert plain(PairRules(decisive=True), exact_terminals=False).mine(tree)[0] == []
    kit.end(worse, 0.1)  # not the least score that there is
    assert rules.mine(tree)[0] == []
    kit.end(worse, 0.0)
    better.successes, better.score_sum = 0, 0.0
    assert rules.mine(tree)[0] == []
