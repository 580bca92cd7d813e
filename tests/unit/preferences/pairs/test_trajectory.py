from __future__ import annotations

import pytest

from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.preferences.pairs.trajectory import TrajectoryPairs, trajectories
from offline_agent.preferences.settings import PairRules
from offline_agent.records import Verdict
from tests.helpers import preferences as kit


def words(steps: object) -> str:
    return " ".join(step.action.text for step in steps)  # type: ignore[attr-defined]


def test_from_the_first_canonical_divergence_on() -> None:
    tree = kit.grow(["A look B leave", "A look C look leave"])
    (pair,), refusals = TrajectoryPairs().mine(tree)
    assert not refusals and pair.kind == "trajectory" and pair.prefix.depth == 2
    assert words(pair.chosen) == "B leave" and words(pair.rejected) == "C look leave"
    assert pair.verdict_chosen is not None and pair.verdict_chosen.success is True
    assert pair.verdict_rejected is not None and pair.verdict_rejected.success is False
    assert (pair.q_chosen, pair.q_rejected, pair.rest_confidence) == (1.0, 0.5, 1.0)
    assert tree.edges[pair.chosen_edge or 0].key == 'press{"button":"B"}'
    assert tree.nodes[pair.node_id or 0].context is pair.prefix


def test_equal_actions_in_other_words_do_not_diverge() -> None:
    first = [kit.act("A", "I press A. "), *kit.acts("B leave")]
    second = [kit.act("A", "First the one on the left. "), *kit.acts("C leave")]
    (pair,), _ = TrajectoryPairs().mine(kit.grow([first, second]))
    assert pair.prefix.depth == 1


@pytest.mark.parametrize("extra", [0, 1])
def test_the_success_is_at_most_so_much_longer(extra: int) -> None:
    tree = kit.grow([f"A {'look ' * (3 + extra)}B leave", "B leave"])
    pairs, refusals = TrajectoryPairs(PairRules(max_extra_steps=4)).mine(tree)
    assert len(pairs) == 1 - extra and len(refusals) == extra
    if extra:
        assert "5 steps longer" in refusals[0].reason


def test_takes_the_failure_nearest_in_length() -> None:
    tree = kit.grow(["A B leave", "B leave", "B look leave", "B look look look look leave"])
    (pair,), _ = TrajectoryPairs().mine(tree)
    assert words(pair.rejected) == "B look leave"


def test_truncated_branches_are_neither_side_where_that_is_asked_for() -> None:
    tree = kit.grow(["A B leave", "look look look look"], max_steps=4)
    assert any(node.truncated for node in tree.nodes)
    assert TrajectoryPairs(PairRules(cut_failures=False)).mine(tree)[0] == []


def test_a_truncated_branch_is_no_side_even_where_its_state_was_judged() -> None:
    tree = kit.grow(["A B leave", "look look look look"], max_steps=4)
    cut = next(node for node in tree.nodes if node.truncated)
    cut.verdict = Verdict(0.0, False, "kit")
    assert TrajectoryPairs(PairRules(cut_failures=False)).mine(tree)[0] == []
    cut.cut, cut.terminated = None, True
    assert len(TrajectoryPairs(PairRules(cut_failures=False)).mine(tree)[0]) == 1


def test_a_branch_that_no_limit_of_the_policy_cut_is_neither_side() -> None:
    tree = kit.grow(["A B leave", "look look look look"], max_steps=4)
    cut = next(node for node in tree.nodes if node.cut is not None)
    assert len(TrajectoryPairs().mine(tree)[0]) == 1
    cut.cut = "labels"  # the rest of its calls is not known
    assert TrajectoryPairs().mine(tree)[0] == []


@pytest.mark.parametrize("kind", ["max_steps", "tokens", "context"])
def test_a_cut_branch_is_the_worse_side_of_a_trajectory_pair_unless_asked_otherwise_and_never_of_a_step_pair(
    kind: str,
) -> None:
    tree = kit.grow(["A B leave"] * 5 + ["look look look look"] * 5, max_steps=4)
    cut = next(node for node in tree.nodes if node.cut is not None)
    cut.cut = kind
    assert TrajectoryPairs(PairRules(cut_failures=False)).mine(tree)[0] == []
    (pair,), _ = TrajectoryPairs().mine(tree)
    assert words(pair.rejected) == "look look look look" and words(pair.chosen) == "A B leave"
    assert pair.verdict_rejected is not None and pair.verdict_rejected.verifier == kind and pair.q_rejected == 0.0
    alone = kit.grow(["leave"] * 5 + ["A"] * 5, max_steps=1)
    alone.nodes[-1].cut = kind
    assert StepPairs(PairRules(min_gap=0.0), second_opinion=False).mine(alone)[0] == []
    (found,) = [t for t in trajectories(tree) if t.truncated]
    assert found.cut_by == kind


def test_quarantined_and_unjudged_branches_are_neither_side() -> None:
    tree = kit.grow(["A B leave", "B leave", "C leave"])
    tree.path(list(tree.terminals())[1])[0].quarantined = "noise"
    kit.end(tree.path(list(tree.terminals())[2])[-1], None)
    assert TrajectoryPairs().mine(tree)[0] == []


def test_at_most_so_many_per_node() -> None:
    tree = kit.grow(["A B leave", "B leave", "C leave", "look leave"])
    assert len(TrajectoryPairs().mine(tree)[0]) == 2


def test_a_noisy_verifier_leaves_doubt() -> None:
    tree = kit.grow(["A B leave", "B leave"])
    (pair,), _ = TrajectoryPairs(certain=False).mine(tree)
    assert pair.rest_confidence is not None and 0.5 < pair.rest_confidence < 1.0


def test_a_failure_that_scores_no_lower_is_no_worse_side() -> None:
    tree = kit.grow(["A B leave", "B leave", "B look leave"])
    ends = list(tree.terminals())
    ends[0].verdict = Verdict(0.6, True, "kit")
    ends[1].verdict = Verdict(0.7, False, "kit")
    (pair,), _ = TrajectoryPairs().mine(tree)
    assert words(pair.rejected) == "B look leave" and pair.q_chosen > pair.q_rejected
    ends[2].verdict = ends[1].verdict
    pairs, (refusal,) = TrajectoryPairs().mine(tree)
    assert not pairs and refusal.reason == "no failure scores lower than the success"


def test_a_tree_in_quarantine_has_no_trajectories() -> None:
    tree = kit.grow(["A B leave", "B leave"])
    assert len(list(trajectories(tree))) == 2
    tree.quarantined = "its verdicts do not repeat"
    assert not list(trajectories(tree))


def test_trajectories_of_a_tree() -> None:
    tree = kit.grow(["A B leave", "B leave", "look look look look"], max_steps=4)
    tree.nodes[tree.path(list(tree.terminals())[0])[-1].child.id].greedy = True  # type: ignore[union-attr]
    found = list(trajectories(tree))
    assert [(t.origin, t.terminated, t.truncated, t.cut_by) for t in found] == [
        ("rollout", True, False, None),
        ("search", True, False, None),
        ("search", False, True, "max_steps"),
    ]
    assert found[2].verdict is None and len(found[2].steps) == 4
    tree.edges[0].quarantined = "noise"
    assert len(list(trajectories(tree))) == 2
