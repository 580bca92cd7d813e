"""The figures against brute force, known values, and simulated tasks whose truth is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from offline_agent.evaluation import report
from offline_agent.evaluation import statistics as st


def test_pass_at_k_and_pass_hat_k_are_what_all_subsets_say() -> None:
    for n in range(1, 8):
        for c in range(n + 1):
            attempts = [1] * c + [0] * (n - c)
            for k in range(1, n + 1):
                subsets = list(itertools.combinations(attempts, k))
                assert report.pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
                assert report.pass_hat_k(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_they_are_unbiased(rate: float, k: int) -> None:
    n = 6
    chances = [math.comb(n, c) * rate**c * (1 - rate) ** (n - c) for c in range(n + 1)]
    at = sum(chance * report.pass_at_k(n, c, k) for c, chance in enumerate(chances))
    hat = sum(chance * report.pass_hat_k(n, c, k) for c, chance in enumerate(chances))
    assert (at, hat) == (pytest.approx(1 - (1 - rate) ** k), pytest.approx(rate**k))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 2, 5), (4, 5, 1), (4, -1, 1), (4, 2, 0)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="allowed: 1 <= k <= n"):
        report.pass_at_k(n, c, k)
    with pytest.raises(ValueError, match="allowed: 1 <= k <= n"):
        report.pass_hat_k(n, c, k)


def test_wilsons_interval_has_its_published_values() -> None:
    assert st.wilson(0.0, 10) == (0.0, pytest.approx(0.2775, abs=1e-4))
    assert st.wilson(0.5, 10) == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))
    assert st.wilson(1.0, 10)[1] == 1.0


def test_the_bootstrap_draws_whole_tasks() -> None:
    means = [0.0, 0.25, 0.5, 0.5, 1.0]
    every = sorted(sum(draw) / 5 for draw in itertools.product(means, repeat=5))
    drawn = st.resampled_means(np.array(means), 200_000, 0)
    for share in (0.025, 0.2, 0.5, 0.9):
        assert np.quantile(drawn, share) == pytest.approx(every[int(share * len(every))], abs=0.051)
    assert drawn.std() == pytest.approx(np.std(every), rel=0.01)


def test_more_attempts_at_the_same_tasks_do_not_make_it_surer() -> None:
    rng = np.random.default_rng(0)
    once = {str(i): [float(rng.random() < 0.5)] for i in range(30)}
    many = {task: scores * 16 for task, scores in once.items()}
    assert st.mean_over_tasks(once) == st.mean_over_tasks(many)


def test_unscored_attempts_are_left_out_and_counted_never_taken_for_failures() -> None:
    got = st.mean_over_tasks({"a": [1.0, None, None], "b": [None], "c": [1.0, 0.0]})
    assert (got.mean, got.tasks, got.unscored_tasks) == (0.75, 2, 1)
    any_of, all_of = report.pass_rates({"a": [1.0, None, None], "b": [0.0, 1.0, 1.0]}, 2)
    assert (any_of.mean, any_of.tasks, any_of.unscored_tasks) == (1.0, 1, 1)
    assert all_of.mean == pytest.approx(1 / 3)


def test_nothing_scored_gives_no_figure_and_says_why() -> None:
    got = st.mean_over_tasks({"a": [None], "b": []})
    assert (got.mean, got.low, got.high, got.unscored_tasks) == (None, None, None, 2)
    assert got.error and got.to_json()["error"]
    difference = st.paired_difference({"a": [1.0]}, {"a": [None], "b": [0.0]})
    assert (difference.mean, difference.p_value, difference.unpaired_tasks) == (None, None, 2)
    assert difference.error and difference.to_json()["error"]
    assert st.confidence_not_worse({"a": [1.0]}, {"b": [1.0]}) is None


def test_scores_outside_0_and_1_are_refused() -> None:
    with pytest.raises(ValueError, match="must be in"):
        st.mean_over_tasks({"a": [3.0]})


@pytest.mark.parametrize("value", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("tasks", [1, 5, 50])
def test_equal_tasks_do_not_make_it_certain(value: float, tasks: int) -> None:
    got = st.estimate([value] * tasks)
    low, high = st.wilson(value, tasks)
    assert got.mean == value and (got.low, got.high) == (pytest.approx(low), pytest.approx(high))
    assert got.high - got.low > 0.05 and got.method == "bootstrap+wilson"  # type: ignore[operator]
    assert got.low <= value <= got.high  # type: ignore[operator]


def test_plain_resampling_where_there_is_enough_to_resample() -> None:
    got = st.estimate([0.0, 0.25, 0.5, 0.75, 1.0] * 6)
    assert got.method == "bootstrap" and got.low < 0.5 < got.high  # type: ignore[operator]


@pytest.mark.parametrize("rate", [0.02, 0.4, 0.97])
def test_intervals_cover_the_truth_about_as_often_as_they_say(rate: float) -> None:
    rng, hits = np.random.default_rng(1), 0
    for trial in range(200):
        own = rng.beta(8 * rate, 8 * (1 - rate), size=40)  # tasks differ; attempts at one do not
        means = rng.binomial(4, own) / 4
        got = st.estimate(list(means), resamples=400, seed=trial)
        hits += got.low <= rate <= got.high  # type: ignore[operator]
    assert hits >= 180


# -- pairs -------------------------------------------------------------------------------------------------------


def brute_p_value(d: list[float]) -> float:
    seen = abs(sum(d))
    flips = [
        abs(sum(s * x for s, x in zip(signs, d, strict=True))) for signs in itertools.product((1, -1), repeat=len(d))
    ]
    return sum(flip >= seen - 1e-9 for flip in flips) / len(flips)


@pytest.mark.parametrize("seed", range(5))
def test_few_tasks_give_the_exact_p_value(seed: int) -> None:
    d = np.random.default_rng(seed).choice([-0.5, -0.25, 0.25, 0.5, 1.0], size=9)
    assert st.sign_flip_p_value(d) == (pytest.approx(brute_p_value(list(d))), "exact")
    with_ties = np.concatenate([d, np.zeros(30)])
    assert st.sign_flip_p_value(with_ties) == st.sign_flip_p_value(d)


def test_known_p_values() -> None:
    assert st.sign_flip_p_value(np.ones(5)) == (2 / 32, "exact")
    assert st.sign_flip_p_value(np.array([1.0, -1.0])) == (1.0, "exact")
    assert st.sign_flip_p_value(np.zeros(7)) == (1.0, "exact")


def test_many_tasks_give_nearly_the_exact_p_value(monkeypatch: pytest.MonkeyPatch) -> None:
    d = np.random.default_rng(3).normal(0.3, 1, size=14)
    exact, _ = st.sign_flip_p_value(d)
    monkeypatch.setattr(st, "EXACT", 4)
    near, how = st.sign_flip_p_value(d, 40_000)
    assert how == "monte_carlo" and near == pytest.approx(exact, abs=0.01)
    assert st.sign_flip_p_value(np.ones(40), 1000)[0] == pytest.approx(1 / 1001)  # never 0


def test_p_values_of_equal_policies_are_not_too_small() -> None:
    rng, small = np.random.default_rng(5), 0
    for _ in range(300):
        one, other = (rng.binomial(2, 0.5, size=11) / 2 for _ in range(2))
        small += st.sign_flip_p_value(one - other)[0] <= 0.05
    assert small <= 25


def test_a_difference_is_of_the_tasks_both_tried() -> None:
    ours = {"a": [1.0, 1.0], "b": [0.0, 1.0], "c": [1.0], "x": [0.0]}
    theirs = {"a": [0.0, 1.0], "b": [0.0], "c": [None], "y": [1.0]}
    got = st.paired_difference(ours, theirs)
    assert (got.mean, got.tasks, got.differing, got.unpaired_tasks) == (0.5, 2, 2, 3)


def test_thirds_of_attempts_are_no_difference() -> None:
    got = st.paired_difference({"a": [1.0, 0.0, 0.0]}, {"a": [0.1, 0.5, 0.4]})
    assert (got.mean, got.differing) == (0.0, 0)


def test_pairing_is_surer_than_two_means_apart() -> None:
    rng = np.random.default_rng(2)
    hard = rng.random(60)
    ours = {str(i): [float(v)] for i, v in enumerate(np.clip(hard + 0.05, 0, 1))}
    theirs = {str(i): [float(v)] for i, v in enumerate(hard)}
    got, alone = st.paired_difference(ours, theirs), st.mean_over_tasks(ours)
    assert got.low > 0 and got.p_value < 0.001  # type: ignore[operator]
    assert got.high - got.low < 0.1 * (alone.high - alone.low)  # type: ignore[operator]


def test_equal_policies_on_few_tasks_are_not_known_to_be_equal() -> None:
    same = {str(i): [1.0] for i in range(10)}
    got = st.paired_difference(same, same)
    assert (got.mean, got.p_value, got.method) == (0.0, 1.0, "bootstrap+wilson")
    assert got.low < -0.2 and got.high > 0.2 and got.low == pytest.approx(-got.high)  # type: ignore[operator]
    many = {str(i): [1.0] for i in range(1000)}
    assert st.paired_difference(many, many).high < 0.01  # type: ignore[operator]


def test_the_same_seed_gives_the_same_figures() -> None:
    rng = np.random.default_rng(9)
    ours, theirs = ({str(i): list(rng.random(3)) for i in range(30)} for _ in range(2))
    assert st.paired_difference(ours, theirs, seed=4) == st.paired_difference(ours, theirs, seed=4)
    assert st.paired_difference(ours, theirs, seed=4) != st.paired_difference(ours, theirs, seed=5)


# -- the gate's question -----------------------------------------------------------------------------------------


def test_the_confidence_that_a_candidate_is_not_worse() -> None:
    rng = np.random.default_rng(7)
    base = {str(i): [float(v)] for i, v in enumerate(rng.binomial(4, 0.5, size=80) / 4)}
    better = {task: [min(1.0, scores[0] + 0.25)] for task, scores in base.items()}
    assert st.confidence_not_worse(better, base) > 0.999  # type: ignore[operator]
    assert st.confidence_not_worse(base, better) < 0.001  # type: ignore[operator]
    other = {str(i): [float(v)] for i, v in enumerate(rng.binomial(4, 0.5, size=80) / 4)}
    answers = [st.confidence_not_worse(other, base, margin) for margin in (0.0, 0.02, 0.1, 0.5)]
    assert answers == sorted(answers) and answers[-1] == pytest.approx(1)  # type: ignore[type-var]
    d, _ = st.differences(other, base)
    wanted = stats.ttest_1samp(d, -0.02, alternative="greater").pvalue
    assert answers[1] == pytest.approx(1 - wanted)


@pytest.mark.parametrize(("tasks", "lost"), [(50, 0), (200, 0), (200, 1), (1000, 10)])
def test_rare_losses_are_tested_by_the_exact_binomial(tasks: int, lost: int) -> None:
    incumbent = {str(i): [1.0] for i in range(tasks)}
    candidate = {str(i): [float(i >= lost)] for i in range(tasks)}
    got = st.confidence_not_worse(candidate, incumbent, 0.02)
    assert got == pytest.approx(1 - stats.binom.cdf(lost, tasks, 0.02))


def test_one_task_or_ties_without_a_margin_prove_nothing() -> None:
    assert st.confidence_not_worse({"a": [1.0]}, {"a": [0.0]}, 0.02) is None
    same = {str(i): [1.0] for i in range(1000)}
    assert st.confidence_not_worse(same, same) == 0.0


def test_the_incomplete_beta_function_is_scipys() -> None:
    from scipy.special import betainc

    rng = np.random.default_rng(0)
    drawn = rng.choice([0.1, 0.5, 1.0, 3.7, 20.0, 199.5, 2000.0], size=(200, 2))
    for a, b in (*drawn, (0.5, 30.917675688559722)):  # of the last both 1 - x and x seem to be on the far side
        side = (a + 1) / (a + b + 2)  # from here on it is computed from the other end
        for x in (0.0, 1e-9, 0.3, 0.5, a / (a + b), side, math.nextafter(side, 1), 0.999, 1.0):
            assert st.incomplete_beta(a, b, x) == pytest.approx(betainc(a, b, x), abs=1e-9)
