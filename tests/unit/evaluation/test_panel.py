"""Several evaluations on one panel: Holm's correction, the noise floor, and the tasks that are needed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from offline_agent.errors import ConfigError
from offline_agent.evaluation.panel import compare, detectable, holm, noise_bound, noise_floor, tasks_needed


def test_holm_steps_down_and_never_reverses_the_order() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, None, 0.8]) == [1.0, None, 1.0]
    assert holm([]) == []


def test_the_noise_floor_covers_95_of_100_repetitions_of_the_same_model() -> None:
    rng = np.random.default_rng(0)
    rates, attempts, inside = rng.uniform(0, 1, 40), 3, []
    for _ in range(400):
        one, other = (rng.random((40, attempts)) < rates[:, None] for _ in range(2))
        floor = noise_floor({str(task): list(map(float, scores)) for task, scores in enumerate(one)})
        assert floor is not None
        inside.append(abs(one.mean() - other.mean()) <= floor)
    assert 0.92 < np.mean(inside) < 0.98


def test_a_single_attempt_a_task_tells_no_noise() -> None:
    assert noise_floor({"a": [1.0], "b": [0.0, None]}) is None
    assert noise_floor({"a": [1.0, 1.0], "b": [0.0, 0.0]}) == 0.0


def test_the_noise_of_single_attempts_stays_below_its_bound() -> None:
    rng = np.random.default_rng(2)
    rates = rng.uniform(0, 1, 60)
    ones, others = (rng.random((400, 60)) < rates for _ in range(2))
    bounds = [noise_bound({str(task): [float(score)] for task, score in enumerate(one)}) for one in ones]
    assert all(bound is not None for bound in bounds)
    beyond = np.abs(ones.mean(axis=1) - others.mean(axis=1)) > np.array(bounds, dtype=float)
    assert beyond.mean() < 0.05 and 0.13 < np.mean(np.array(bounds, dtype=float)) < 0.22
    assert noise_bound({"a": [1.0]}) is None


def test_two_that_never_differ_still_say_how_many_tasks_would_tell_them_apart() -> None:
    same = {str(task): [float(task % 2)] for task in range(20)}
    (contrast,) = (panel := compare({"one": same, "other": same}, resamples=200)).contrasts
    assert contrast.tasks_needed is None and contrast.assumed and contrast.detectable > 0
    assert panel.plan[0][1] == tasks_needed(0.1, 0.5**0.5, 0.05) == 393
    assert [entry.noise for entry in panel.entries] == [None, None] and panel.entries[0].noise_at_most is not None


def test_tasks_needed_find_the_difference_in_four_of_five() -> None:
    rng = np.random.default_rng(1)
    n = tasks_needed(0.2, 0.6, 0.05)
    assert n == 71 and detectable(n, 0.6, 0.05) == pytest.approx(0.2, abs=0.002)
    found = [abs(d.mean()) / (d.std(ddof=1) / n**0.5) > 1.96 for d in rng.normal(0.2, 0.6, (2000, n))]
    assert 0.77 < np.mean(found) < 0.84


def test_only_tasks_that_all_scored_are_compared() -> None:
    rng = random.Random(0)
    good = {str(task): [1.0, 1.0] for task in range(30)}
    bad = {str(task): [float(rng.random() < 0.3), 0.0] for task in range(5, 40)} | {"29": [None, None]}
    panel = compare({"good": good, "bad": bad, "same": good}, resamples=500)
    assert len(panel.tasks) == 24 and panel.left_out == 16 and "29" not in panel.tasks
    by_name = {(one.one, one.other): one for one in panel.contrasts}
    assert by_name["good", "bad"].p_holm == pytest.approx(3 * by_name["good", "bad"].difference.p_value, rel=0.34)
    assert by_name["good", "same"].p_holm == 1.0 and by_name["good", "same"].tasks_needed is None
    assert by_name["good", "same"].assumed and not by_name["good", "bad"].assumed
    assert [size for size, _ in panel.plan] == [0.1, 0.05, 0.02] and panel.plan[0][1] < panel.plan[1][1]
    with pytest.raises(ConfigError, match="no task in common"):
        compare({"one": {"a": [1.0]}, "other": {"b": [1.0]}})
