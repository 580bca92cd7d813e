"""`confidence` is of the first differing action, for every kind of pair; what is verified of the rest is told apart."""

from __future__ import annotations

from typing import Any

from offline_agent.envs.base import EnvSpec
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.records import PreferencePair
from offline_agent.preferences.settings import PairRules
from tests.helpers import preferences as kit

# To look first is better here: one lucky success begins with A, and one failure with a look.
LUCK = ["A C leave"] * 24 + ["A B leave"] + ["look A B leave"] * 24 + ["look C leave"]


def mined(rollouts: list[str], spec: EnvSpec = kit.SPEC, *, kinds: Any) -> list[PreferencePair]:
    return Miner(spec, PairRules(kinds=kinds), step_seconds=None).mine(kit.grow(rollouts, spec)).pairs


def first(pair: PreferencePair) -> tuple[str, str]:
    return pair.chosen[0].action.text, pair.rejected[0].action.text


def test_a_lucky_success_does_not_make_its_first_action_the_better_one() -> None:
    at_root = {first(p): p for p in mined(LUCK, kinds=("step", "trajectory")) if p.prefix.depth == 0}
    lucky, deserved = (p for p in at_root.values() if p.kind == "trajectory")
    if first(lucky) != ("A", "look"):
        lucky, deserved = deserved, lucky
    assert (first(lucky), first(deserved)) == (("A", "look"), ("look", "A"))
    assert lucky.confidence is not None and lucky.confidence < 0.1
    assert deserved.confidence is not None and deserved.confidence > 0.9
    assert lucky.rest_confidence == deserved.rest_confidence == 1.0


def test_a_trajectory_pair_is_as_sure_of_its_step_as_the_step_pair_of_the_same_actions() -> None:
    pairs = [p for p in mined(LUCK, kinds=("step", "trajectory")) if first(p) == ("look", "A")]
    step, trajectory = sorted(pairs, key=lambda p: p.kind)
    assert (step.kind, trajectory.kind) == ("step", "trajectory")
    assert step.confidence == trajectory.confidence and step.rest_confidence is None


def test_values_of_one_request_say_nothing_of_another() -> None:
    pairs = mined(["B leave", "C leave", "A B leave"] * 4, kinds=("hindsight",))
    assert pairs and all(p.confidence is None and p.rest_confidence == 1.0 for p in pairs)


def test_a_shorter_success_is_as_sure_as_the_tree_says_and_unknown_where_it_does_not() -> None:
    (known,) = mined(["look A B leave"] * 12 + ["A C leave"] * 20, kinds=("minimal",))
    assert first(known) == ("A", "look") and known.confidence is not None and known.confidence < 0.1
    (unknown,) = mined(["look A B leave"] * 3, kinds=("minimal",))
    assert unknown.confidence is None and known.rest_confidence == unknown.rest_confidence == 1.0


def test_a_noisy_verifier_leaves_doubt_of_the_rest_too() -> None:
    class Noisy(kit.Vault):
        deterministic_verifier = False

    pairs = mined(LUCK, EnvSpec(Noisy), kinds=("trajectory",))
    assert pairs and all(p.rest_confidence is not None and 0.5 < p.rest_confidence < 1 for p in pairs)


def test_an_action_that_was_never_followed_to_an_end_is_not_compared() -> None:
    tree = kit.fan((3, 0), (0, 0))
    miner = Miner(kit.SPEC, step_seconds=None)
    compared = miner.steps.compare(tree)
    assert compared.above(tree.edges[0], tree.edges[1]) is None
    other = kit.sided(tree, tree.root, kit.act("leave"), 0, 3)
    assert compared.above(tree.edges[0], other) > 0.9


def test_no_kind_chooses_a_refused_call_first_that_the_tree_values_lower() -> None:
    # X is no button: one lucky success begins with it, most of its rollouts fail.
    rollouts = ["X A C leave"] * 12 + ["X A B leave"] + ["A B leave"] * 12 + ["A C leave"]
    tree = kit.grow(rollouts)
    miner = Miner(kit.SPEC, PairRules(kinds=("trajectory",)), step_seconds=None)
    found = miner.mine(tree)
    assert ("X", "A") not in map(first, found.pairs) and ("A", "X") in map(first, found.pairs)
    (refusal,) = [r for r in found.refusals if "call that the tool refused" in r.reason]
    assert refusal.kind == "trajectory" and "the tree values it lower" in refusal.reason
    lucky = ["X A B leave"] * 12 + ["X A C leave"] + ["A C leave"] * 12 + ["A B leave"]
    assert ("X", "A") in map(first, miner.mine(kit.grow(lucky)).pairs)  # the tree does not say so
