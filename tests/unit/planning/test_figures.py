"""Sources of a plan's figures: intervals from a few tasks, rows never seen, the table."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_agent.planning.figures import (
    Figure,
    Forecast,
    amount,
    beside,
    exactly,
    grown,
    rows,
    table,
    total,
    unknown,
)
from offline_agent.planning.tasks import TaskCosts, figures

NO_PLAN = {
    "tokens": None, "prompt_tokens": None, "cached": None, "tool_calls": None, "pairs": None, "generators": 1,
    "workers": None, "tokens_per_second": None, "prompt_tokens_per_second": None, "tool_seconds": None,
}  # fmt: skip


def config(workers: int = 1, **given: Any) -> Any:
    return SimpleNamespace(plan=SimpleNamespace(**{**NO_PLAN, **given}), limits=SimpleNamespace(workers=workers))


def by_name(found: TaskCosts | None, tasks: int, workers: int = 1, **given: Any) -> dict[str, Figure]:
    made = figures(config(workers, **given), tasks, found, most_calls=100, most_tokens=1000)
    return {figure.name: figure for figure in made}


FOUND = TaskCosts(
    tokens=[10.0, 20.0, 30.0, 40.0], prompts=[100.0, 200.0, 300.0, 400.0], calls=[1.0, 2.0, 3.0, 4.0],
    sizes=[1.0, 1.0, 1.0, 1.0], rows={"pairs": (8.0, [1.0, 2.0, 2.0, 3.0])}, size=4096.0, without_cache=5000.0,
    computed=1500.0, replayed=5.0, seconds=12.0, generation=8.0, tools=6.0, driver=2.0, threads=2,
)  # fmt: skip


def test_tasks_that_were_seen_are_known_and_the_others_are_like_them() -> None:
    each = [1.0, 3.0]
    assert total(each, 2) == (4, 4, 4)
    expected, low, high = total(each, 6)
    assert expected == 12
    margin = 12.7062 * 2**0.5 * (4 * (1 + 4 / 2)) ** 0.5  # t(1) * s * sqrt(k(1 + k/m))
    assert high == pytest.approx(12 + margin, rel=1e-4)
    assert low == 4  # never below what is known already
    assert total([2.0], 5) == (10, None, None)  # one task has no spread
    assert total(each, 1, known=False).expected == 2


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=30), st.integers(1, 500))
def test_bounds_hold_the_expectation(each: list[float], count: int) -> None:
    for known in (True, False):
        expected, low, high = total(each, count, known)
        assert low is not None and high is not None and expected is not None
        assert 0 <= low <= expected * (1 + 1e-9) and expected <= high * (1 + 1e-9) + 1e-9


def test_the_interval_covers_what_comes() -> None:
    rng, inside = random.Random(1), 0
    for _ in range(400):
        every = [rng.gauss(100, 30) for _ in range(80)]
        _, low, high = total(every[:20], 80)
        assert low is not None and high is not None
        inside += low <= sum(every) <= high
    assert 0.92 < inside / 400 < 0.98


def test_what_goes_with_a_figure_grows_like_it() -> None:
    assert grown(50, [1.0, 3.0], 2) == (50, 50, 50)
    assert grown(50, [1.0, 3.0], 6).expected == 150
    assert grown(50, [0.0, 0.0], 6) == (150, None, None)
    assert grown(0, [0.0, 0.0], 6) == (0, 0, 0)


def test_rows_that_were_seen_nowhere_may_be_there() -> None:
    assert rows(0, [0.0] * 20, 220) == (0, 0, 30)
    assert rows(0, [0.0] * 20, 20) == (0, 0, 0)
    assert rows(6, [1.0, 2.0, 3.0], 30).expected == 60


def test_estimates_add_up_and_what_is_not_known_stays_so() -> None:
    assert exactly(2).plus(Forecast(1, 0, 5)) == (3, 2, 7)
    assert Forecast(1, 0, 5).plus(Forecast(1)) == (2, None, None)
    assert Forecast(1, None, 5).times(2) == (2, None, 10)


def test_amounts_come_from_the_probe_and_time_from_its_longest_part() -> None:
    made = by_name(FOUND, 8)
    assert made["tokens_sampled"].forecast.expected == 200
    assert made["prompt_tokens_without_cache"].forecast.expected == 10000
    assert made["prompt_tokens_computed"].forecast.expected == 3000
    assert made["prompt_tokens_once"].forecast.expected == 2000
    assert made["calls_replayed"].forecast.expected == 10
    assert made["pairs"].forecast.expected == 16 and made["disk"].forecast.expected == 8192
    expected, low, high = made["seconds_working"].forecast
    assert expected == pytest.approx(24)  # twice 8 s of generation, and twice the 4 s that nothing explains
    _, least, most = total(FOUND.tokens, 8)
    assert least is not None and most is not None
    assert low == pytest.approx(16 * least / 200) and high == pytest.approx(24 * most / 200)


def test_more_generators_help_until_something_else_is_longest() -> None:
    seconds = [by_name(FOUND, 8, generators=n)["seconds_working"].forecast.expected for n in (1, 2, 4)]
    assert seconds == pytest.approx([24, 12 + 8, 12 + 8])  # 6 s of tools in one worker
    assert by_name(FOUND, 8, 3, generators=8)["seconds_working"].forecast.expected == pytest.approx(4 + 8)


def test_given_rates_take_the_place_of_measured_ones() -> None:
    made = by_name(FOUND, 8, tokens_per_second=2.0, prompt_tokens_per_second=30.0, tool_seconds=0.0)
    assert made["seconds_working"].forecast.expected == pytest.approx(200 / 2 + 3000 / 30 + 8)
    made = by_name(FOUND, 8, tool_seconds=10.0, workers=4)
    assert made["seconds_working"].forecast.expected == pytest.approx((20 + 10) * 10 / 4 + 8)
    made = by_name(FOUND, 8, cached=0.5, pairs=1.0)
    assert made["prompt_tokens_computed"].forecast.expected == 5000 and made["pairs"].forecast.expected == 8


def test_without_a_probe_there_are_bounds_and_reasons() -> None:
    made = by_name(None, 8)
    assert made["tokens_sampled"].forecast == (None, None, 8000)
    assert made["tool_calls"].forecast == (None, None, 800)
    for name in ("prompt_tokens_without_cache", "seconds_working", "disk", "pairs"):
        assert made[name].forecast == (None, None, None) and "plan.probe" in made[name].note
    made = by_name(
        None, 10, tokens=100.0, prompt_tokens=1000.0, cached=0.75, tool_calls=5.0, pairs=3.0, generators=2,
        tokens_per_second=50.0, prompt_tokens_per_second=500.0, tool_seconds=0.1,
    )  # fmt: skip
    assert made["tokens_sampled"].forecast.expected == 1000 and made["pairs"].forecast.expected == 30
    assert made["prompt_tokens_computed"].forecast.expected == pytest.approx(2500)
    assert made["seconds_working"].forecast.expected == pytest.approx((1000 / 50 + 2500 / 500) / 2)


def test_expected_stands_beside_actual() -> None:
    told = beside([Figure("pairs", Forecast(10, 5, 15), "rows"), unknown("disk", "bytes", "why")], {"pairs": 12})
    assert told["pairs"] == {
        "expected": 10, "low": 5, "high": 15, "unit": "rows", "note": "", "actual": 12, "ratio": 1.2,
    }  # fmt: skip
    assert told["disk"]["actual"] is None and told["disk"]["ratio"] is None
    assert Figure.from_json("pairs", told["pairs"]) == Figure("pairs", Forecast(10, 5, 15), "rows")
    assert [column.header for column in table(told, "t").columns] == [
        "what", "expected", "95% between", "actual", "ratio", "note",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(None, "rows", "not known"), (1234.6, "rows", "1,235"), (61.0, "seconds", "61.0 s"),
     (600.0, "seconds", "10.0 min"), (10800.0, "seconds", "3.0 h"), (100, "bytes", "100 B"),
     (3 * 2**20, "bytes", "3.0 MiB")],
)  # fmt: skip
def test_amounts_in_words(value: float | None, unit: str, text: str) -> None:
    assert amount(value, unit) == text
