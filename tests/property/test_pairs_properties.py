from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.dataset.candidates import PairFacts
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.pairs.comparison import policy_values
from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.preferences.settings import PairRules
from offline_agent.preferences.statistics import Evidence, node_prior, probability_above
from tests.helpers import preferences as kit
from tests.helpers.balance_reference import chosen as choose
from tests.helpers.balance_reference import delta, mean_length_gap

COUNTS = st.floats(0, 200)
ROLLOUTS = st.lists(
    st.lists(st.sampled_from(["A", "B", "C", "X", "look", "fly"]), min_size=0, max_size=5).map(
        lambda words: " ".join([*words, "leave"])
    ),
    min_size=1,
    max_size=14,
)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_probabilities_are_probabilities_and_complement(a: float, b: float, c: float, d: float) -> None:
    forward = probability_above(Evidence(a, b), Evidence(c, d))
    assert 0.0 <= forward <= 1.0
    assert forward + probability_above(Evidence(c, d), Evidence(a, b)) == pytest.approx(1.0, abs=1e-9)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_another_success_never_hurts(a: float, b: float, c: float, d: float) -> None:
    before = probability_above(Evidence(a, b), Evidence(c, d))
    assert probability_above(Evidence(a + 1, b), Evidence(c, d)) >= before - 1e-9
    assert probability_above(Evidence(a, b + 1), Evidence(c, d)) <= before + 1e-9


@settings(deadline=None, max_examples=30)
@given(st.floats(0, 1), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=6))
def test_shrunk_comparisons_complement_and_another_success_never_hurts(
    mean: float, sides: list[tuple[int, int]]
) -> None:
    one, other = (Evidence(*side) for side in sides[:2])
    prior = node_prior(mean, [Evidence(*side) for side in sides])
    assert sum(weight for weight, _ in prior.parts) == pytest.approx(1.0)
    assert prior.above(one, other) + prior.above(other, one) == pytest.approx(1.0, abs=1e-9)
    more = Evidence(one.successes + 1, one.failures)
    assert prior.above(more, other) >= prior.above(one, other) - 1e-9 and prior.value(more) > prior.value(one)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=6), st.floats(0, 1))
def test_step_pairs_keep_their_promises(sides: list[tuple[int, int]], gap: float) -> None:
    tree = kit.fan(*sides)
    rules = PairRules(min_gap=gap)
    pairs, _ = StepPairs(rules, second_opinion=False).mine(tree)
    assert len(pairs) <= rules.per_node
    for pair in pairs:
        assert pair.q_chosen - pair.q_rejected >= gap and pair.confidence >= rules.confidence
        assert min(pair.visits_chosen, pair.visits_rejected) >= rules.min_visits
        assert pair.chosen_edge != pair.rejected_edge


@given(ROLLOUTS)
def test_policy_values_stay_between_the_ends(rollouts: list[str]) -> None:
    tree = kit.grow(rollouts)
    scores = [end.verdict.score for end in tree.terminals() if end.verdict is not None] + [0.0]
    for estimate in policy_values(tree).values():
        assert min(s for s in scores if s is not None) - 1e-9 <= estimate.mean <= max(scores) + 1e-9  # type: ignore[type-var]
        assert estimate.variance >= 0.0


@settings(deadline=None, max_examples=40)
@given(ROLLOUTS)
def test_everything_mined_is_verified_and_comes_out_the_same_twice(rollouts: list[str]) -> None:
    tree = kit.grow(rollouts)
    first, second = (Miner(kit.SPEC, step_seconds=None).mine(tree) for _ in range(2))
    assert _shown(first.pairs) == _shown(second.pairs) and first.refusals == second.refusals
    for pair in first.pairs:
        assert pair.chosen[0].key != pair.rejected[0].key and 0 <= (pair.confidence or 0) <= 1
        assert (pair.kind == "step") == (pair.rest_confidence is None)
        if pair.kind == "step":
            assert pair.confidence is not None and pair.confidence >= 0.9
        else:
            assert pair.verdict_chosen is not None and pair.verdict_chosen.success is True
            assert pair.verdict_rejected is not None
            assert pair.verdict_rejected.success is (pair.kind == "minimal")
            assert _replayed(pair.prefix, pair.chosen) and _replayed(pair.prefix, pair.rejected) == (
                pair.kind == "minimal"
            )  # fmt: skip
    for trajectory in first.filtered:
        assert _replayed(trajectory.context.lineage()[0], trajectory.steps)
    assert len({tuple([t.task.task_id, *(s.key for s in t.steps)]) for t in first.filtered}) == len(first.filtered)


def _replayed(prefix: Any, steps: Any) -> bool:
    """Whether the actions, observations included, are a success in a fresh episode."""
    episode = kit.SPEC.open()
    assert episode.reset(prefix.task) == prefix.lineage()[0].observation
    seen = [episode.step(action).observation for action in prefix.actions()]
    assert seen == [node.observation for node in prefix.lineage()[1:]]
    for step in steps:
        assert episode.step(step.action).observation == step.observation
    return episode.verdict().success is True


def _shown(pairs: Any) -> list[Any]:
    return [(p.kind, p.node_id, p.chosen_edge, p.rejected_edge, p.confidence, p.q_chosen) for p in pairs]


FACTS = st.lists(
    st.builds(
        PairFacts,
        st.just("p"),
        st.sampled_from(["step", "trajectory", "hindsight", "minimal"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 5),
        st.binary(min_size=1, max_size=1),
        st.binary(min_size=1, max_size=1),
        st.binary(min_size=1, max_size=1),
        st.integers(1, 100),
        st.integers(1, 100),
        st.floats(0.5, 1),
        st.floats(0, 1),
    ),
    max_size=60,
)


@given(FACTS, st.sampled_from([0.5, 1.0]))
def test_balance_keeps_its_promises(pairs: list[PairFacts], most_dropped: float) -> None:
    rules = PairRules()
    chosen = choose(Balance(rules, most_dropped=most_dropped), pairs)
    kept = [pairs[i] for i in chosen.kept]
    assert list(chosen.kept) == sorted(set(chosen.kept)) and len(kept) + len(chosen.refusals) == len(pairs)
    assert len({p.digest for p in kept}) == len(kept)
    assert not {p.forward for p in kept} & {p.backward for p in kept}
    assert max(Counter(p.group for p in kept).values(), default=0) <= rules.per_task
    assert max(Counter((p.group, p.depth) for p in kept).values(), default=0) <= rules.per_depth
    total = sum(delta(p) for p in kept)
    matched = sum(refusal.reason.startswith("length matching") for refusal in chosen.refusals)
    assert matched <= most_dropped * (len(kept) + matched)
    gap = mean_length_gap(kept) if most_dropped == 1.0 else 0.0
    if gap > rules.length_tolerance and len(kept) > 1:  # then no drop would bring the mean nearer
        assert all(abs(total - delta(p)) >= abs(total) for p in kept if delta(p) * total > 0)
    for i, weight in zip(chosen.kept, chosen.weights, strict=True):
        assert weight == pytest.approx(Counter(p.group for p in kept)[pairs[i].group] ** -0.5)
