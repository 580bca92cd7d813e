"""The simulated runs: the gate keeps its promise where the rule before did not, and still promotes what is better."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = str(Path(__file__).parents[3] / "benchmarks")


@pytest.fixture(scope="module")
def simulation() -> Iterator[Any]:
    sys.path.insert(0, BENCHMARKS)
    try:
        yield importlib.import_module("gate_error")
    finally:
        sys.path.remove(BENCHMARKS)


def share(simulation: Any, rule: str, name: str, runs: int) -> tuple[float, float]:
    """Shares of runs that promote something worse, and that promote in the first iteration."""
    scenario = next(each for each in simulation.SCENARIOS if each.name == name)
    found = [simulation.RULES[rule](scenario, np.random.default_rng([7, run])) for run in range(runs)]
    wrong = [any(n is not None and scenario.wrong[n] for n in each) for each in found]
    return sum(wrong) / runs, sum(each[0] is not None for each in found) / runs


def test_a_run_promotes_what_is_worse_as_seldom_as_was_asked_for(simulation: Any) -> None:
    assert share(simulation, "one look", "both 3 points worse", 60)[0] > 0.2
    assert share(simulation, "now", "both 3 points worse", 60)[0] <= 0.1


def test_ten_points_are_seen_mostly_and_rambling_never_pays(simulation: Any) -> None:
    assert share(simulation, "now", "both 10 points better", 40)[1] > 0.6
    rambling = "both solve 0.8 times as often, 70 % of failures unscored"
    assert share(simulation, "now", rambling, 20)[0] == 0 and share(simulation, "one look", rambling, 20)[0] > 0.9
