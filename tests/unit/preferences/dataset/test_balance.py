from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.dataset.candidates import FactTable, PairFacts
from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.preferences.pairs.trajectory import TrajectoryPairs
from offline_agent.preferences.records import PairKind, PreferencePair, Refusal
from offline_agent.preferences.settings import PairRules
from offline_agent.records import Action
from tests.helpers import preferences as kit
from tests.helpers.balance_reference import balanced, delta, facts_of, mean_length_gap
from tests.helpers.balance_reference import chosen as choose


def facts(i: int, **changes: object) -> PairFacts:
    plain = PairFacts(
        f"p{i}", "step", "task", i, f"d{i}".encode(), f"f{i}".encode(), f"b{i}".encode(), 10, 10, 0.95, 0.5
    )
    return plain._replace(**changes)  # type: ignore[arg-type]


LOOSE = Balance(PairRules(length_tolerance=1e9))


def test_doubles_keep_the_surest() -> None:
    pairs = [facts(0, digest=b"x", confidence=0.91), facts(1, digest=b"x", confidence=0.97), facts(2)]
    chosen = choose(LOOSE, pairs)
    assert chosen.kept == (1, 2) and "same prompt" in chosen.refusals[0].reason
    assert chosen.refusals[0].facts["twin"] == "p1"


def test_contradictions_lose_both() -> None:
    chosen = choose(LOOSE, [facts(0, forward=b"ab", backward=b"ba"), facts(1, forward=b"ba", backward=b"ab"), facts(2)])
    assert (
        chosen.kept == (2,)
        and [r.reason for r in chosen.refusals] == ["another pair says the opposite of the same prompt"] * 2
    )


def test_per_task_and_per_depth() -> None:
    pairs = [facts(i, depth=i // 6) for i in range(24)]
    chosen = choose(LOOSE, pairs)
    assert Counter(pairs[i].depth for i in chosen.kept) == {0: 4, 1: 4, 2: 4, 3: 4}
    chosen = choose(Balance(PairRules(per_task=5, per_depth=99, length_tolerance=9)), pairs)
    assert len(chosen.kept) == 5 and len(chosen.refusals) == 19
    assert len(choose(Balance(PairRules(per_task=5, length_tolerance=9)), pairs + [facts(40, group="other")]).kept) == 6


def test_kinds_take_turns() -> None:
    kinds: list[PairKind] = ["step"] * 10 + ["trajectory"] * 10 + ["hindsight"] * 10 + ["minimal"] * 2
    pairs = [facts(i, kind=kind) for i, kind in enumerate(kinds)]
    chosen = choose(LOOSE, pairs)
    counts = Counter(pairs[i].kind for i in chosen.kept)
    assert counts == {"step": 5, "trajectory": 5, "hindsight": 4, "minimal": 2}


def test_pairs_of_which_nobody_knows_how_sure_they_are_come_last() -> None:
    (pair,), _ = TrajectoryPairs().mine(kit.grow(["A B leave", "B leave"]))
    assert pair.confidence is None and pair.rest_confidence == 1.0
    known = [facts_of(replace(pair, confidence=sure)).confidence for sure in (None, 0.3, 0.95)]
    pairs = [facts(n, kind="trajectory", confidence=sure) for n, sure in enumerate(known)]
    assert choose(Balance(PairRules(per_task=1, length_tolerance=9)), pairs).kept == (2,)
    assert choose(Balance(PairRules(per_task=2, length_tolerance=9)), pairs).kept == (1, 2)


def test_the_surest_of_a_kind_first() -> None:
    pairs = [facts(i, confidence=0.9 + i / 100) for i in range(6)]
    assert choose(Balance(PairRules(per_task=2, length_tolerance=9)), pairs).kept == (4, 5)


def test_weights() -> None:
    chosen = choose(LOOSE, [facts(i, group="a") for i in range(4)] + [facts(9, group="b")])
    assert chosen.weights == (0.5, 0.5, 0.5, 0.5, 1.0)


def test_lengths_are_matched() -> None:
    pairs = [facts(i, group=str(i), chosen_length=10 + i % 7 * 3, rejected_length=12) for i in range(200)]
    assert mean_length_gap(pairs) > 0.05
    chosen = choose(Balance(most_dropped=1.0), pairs)
    kept = [pairs[i] for i in chosen.kept]
    assert mean_length_gap(kept) <= 0.05 and len(kept) > 50
    assert all("length matching" in refusal.reason for refusal in chosen.refusals)
    assert all(refusal.facts["delta"] > 0 for refusal in chosen.refusals)
    dropped = {refusal.facts["delta"] for refusal in chosen.refusals}
    assert max(dropped) == 16 and min(dropped) > min(delta(p) for p in kept if delta(p) > 0)


def test_lengths_of_the_other_sign_too() -> None:
    pairs = [facts(i, group=str(i), chosen_length=8, rejected_length=30 - i % 5) for i in range(40)]
    pairs += [facts(100 + i, group=str(100 + i), chosen_length=14, rejected_length=10) for i in range(40)]
    kept = [pairs[i] for i in choose(Balance(), pairs).kept]
    assert mean_length_gap(kept) <= 0.05 and {delta(p) > 0 for p in kept} == {True, False}


def test_a_pair_that_makes_lengths_even_goes_before_one_that_tips_them() -> None:
    pairs = [
        facts(0, chosen_length=17, confidence=0.90),
        facts(1, chosen_length=15, confidence=0.91),
        facts(2, rejected_length=17, confidence=0.99),
    ]
    assert choose(Balance(PairRules(length_tolerance=0), bins=1), pairs).kept == (0, 2)


def test_matched_lengths_drop_nothing() -> None:
    pairs = [facts(0, chosen_length=12, rejected_length=10), facts(1, chosen_length=10, rejected_length=12)]
    assert choose(Balance(), pairs).kept == (0, 1)


def test_nothing_from_nothing() -> None:
    assert choose(Balance(), []).kept == () and mean_length_gap([]) == 0.0


def some_pairs() -> list[PreferencePair]:
    tree = kit.grow(["A B leave", "A C leave", "B leave", "C leave"] * 4)
    return StepPairs(second_opinion=False).mine(tree)[0] + TrajectoryPairs().mine(tree)[0]


def test_pairs_keep_their_order_and_get_weights() -> None:
    pairs = some_pairs()
    kept, refusals = balanced(LOOSE, pairs)
    assert kept and not refusals and [p.kind for p in kept] == [p.kind for p in pairs]
    assert {p.weight for p in kept} == {1 / math.sqrt(len(kept))}


def test_the_same_pair_twice_is_kept_once() -> None:
    pairs = some_pairs()
    kept, refusals = balanced(LOOSE, pairs + pairs)
    assert len(kept) == len(pairs) and len(refusals) == len(pairs)


def test_a_pair_turned_round_contradicts() -> None:
    (pair, *_) = some_pairs()
    turned = replace(pair, chosen=pair.rejected, rejected=pair.chosen)
    kept, refusals = balanced(LOOSE, [pair, turned])
    assert kept == [] and len(refusals) == 2
    # other words for the same actions contradict as well
    loud = replace(turned.chosen[0], action=replace(turned.chosen[0].action, text="hm", thought="hm"))
    assert balanced(LOOSE, [pair, replace(turned, chosen=(loud, *turned.chosen[1:]))])[0] == []


def test_lengths_count_ids_where_there_are_some() -> None:
    (pair, *_) = some_pairs()
    assert facts_of(pair).chosen_length == sum(len(step.action.text) for step in pair.chosen)

    def with_ids(steps: tuple, n: int) -> tuple:
        return tuple(replace(s, action=Action(s.action.text, call=s.action.call, token_ids=(1,) * n)) for s in steps)

    numbered = replace(pair, chosen=with_ids(pair.chosen, 7), rejected=with_ids(pair.rejected, 3))
    assert delta(facts_of(numbered)) == 7 * len(pair.chosen) - 3 * len(pair.rejected)


def test_requests_that_differ_are_different_prompts() -> None:
    (one, *_) = some_pairs()
    tree = kit.grow(["B C leave", "A C leave", "A leave", "C leave"] * 4, of=kit.task("BC"))
    (other, *_) = TrajectoryPairs().mine(tree)[0]
    assert facts_of(one).forward != facts_of(other).forward


def test_where_better_sides_are_shorter_by_nature_length_matching_keeps_all_and_says_so() -> None:
    pairs = [facts(i, group=str(i), chosen_length=8, rejected_length=20) for i in range(14)]
    table = FactTable.of(pairs)
    refusals: list[Refusal] = []
    choice = Balance().choose(table, refusals.append)
    assert len(choice.kept) == 14 and not refusals
    assert choice.unmatched == 13 and not choice.longer
    strict = choose(Balance(most_dropped=1.0), pairs)
    assert len(strict.kept) == 1 and len(strict.refusals) == 13
