"""Invariants of the statistics for any attempts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from offline_agent.evaluation import report
from offline_agent.evaluation import statistics as st

scores = some.lists(some.none() | some.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=0, max_size=5)
outcomes = some.dictionaries(some.sampled_from("abcdefghij"), scores, max_size=10)


@given(outcomes)
@settings(max_examples=60)
def test_a_mean_is_inside_its_interval_and_every_task_is_counted(tried: dict[str, list[float | None]]) -> None:
    got = st.mean_over_tasks(tried, resamples=200)
    assert got.tasks + got.unscored_tasks == len(tried)
    if got.mean is None:
        assert got.error and not any(score is not None for each in tried.values() for score in each)
    else:
        assert got.low is not None and got.high is not None
        assert 0 <= got.low <= got.mean + 1e-12 and got.mean <= got.high + 1e-12 <= 1 + 1e-9
        assert got.high > got.low  # ten tasks at most are never certain


@given(outcomes, some.randoms())
@settings(max_examples=60)
def test_an_interval_does_not_depend_on_the_order_of_the_tasks(
    tried: dict[str, list[float | None]], rng: random.Random
) -> None:
    other = dict(rng.sample([*tried.items()], len(tried)))
    assert st.mean_over_tasks(tried, resamples=50) == st.mean_over_tasks(other, resamples=50)


@given(outcomes, outcomes)
@settings(max_examples=60)
def test_swapping_the_sides_turns_the_difference_around(
    one: dict[str, list[float | None]], other: dict[str, list[float | None]]
) -> None:
    there, back = (st.paired_difference(a, b, resamples=300) for a, b in ((one, other), (other, one)))
    assert (there.p_value, there.tasks, there.unpaired_tasks) == (back.p_value, back.tasks, back.unpaired_tasks)
    if there.mean is not None:
        assert back.mean is not None and there.low is not None and there.high is not None
        assert there.mean == pytest.approx(-back.mean) and 0 < there.p_value <= 1  # type: ignore[operator]
        assert there.low == pytest.approx(-back.high) and there.high == pytest.approx(-back.low)  # type: ignore[operator]
        assert there.low - 1e-12 <= there.mean <= there.high + 1e-12
        sure = st.confidence_not_worse(one, other), st.confidence_not_worse(other, one)
        assert (None in sure) == (there.tasks < 2)
        if None not in sure:  # both cannot be shown to be better
            assert min(sure) >= 0 and sum(sure) <= 1 + 1e-9  # type: ignore[arg-type, type-var, operator]


@given(some.integers(1, 12), some.data())
def test_more_tries_help_any_of_them_and_hurt_all_of_them(n: int, data: some.DataObject) -> None:
    c = data.draw(some.integers(0, n))
    at = [report.pass_at_k(n, c, k) for k in range(1, n + 1)]
    hat = [report.pass_hat_k(n, c, k) for k in range(1, n + 1)]
    assert at == sorted(at) and hat == sorted(hat, reverse=True)
    assert at[0] == pytest.approx(c / n) == pytest.approx(hat[0])
    assert at[-1] == float(c > 0) and hat[-1] == float(c == n)
