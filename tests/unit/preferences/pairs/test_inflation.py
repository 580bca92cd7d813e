"""The gap of a step pair is not what a search makes of it: on trees whose action values are known exactly."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))

from _mdp import Choices, search, state_after

from offline_agent.preferences.pairs.step import StepPairs


@pytest.mark.parametrize("partial", [False, True])
def test_the_gaps_stored_are_hardly_larger_than_the_true_ones(partial: bool) -> None:
    stored, plain = [], []
    for seed in range(50):
        task = Choices(seed, partial)
        tree = search(task, simulations=32)
        for pair in StepPairs().mine(tree)[0]:
            better, worse = (tree.edges[edge or 0] for edge in (pair.chosen_edge, pair.rejected_edge))
            if better.exact and worse.exact:
                continue  # ends are known, and nothing is estimated
            true = task.value(state_after(task, better)) - task.value(state_after(task, worse))
            stored.append(pair.q_chosen - pair.q_rejected - true)
            plain.append((better.value or 0.0) - (worse.value or 0.0) - true)
    assert len(stored) > 40 and sum(plain) / len(plain) > 0.0  # the winner's curse is there
    assert -0.15 < sum(stored) / len(stored) < 0.01
