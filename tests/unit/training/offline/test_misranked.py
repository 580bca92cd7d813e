"""Which pairs the start model ranks wrongly: against plain float64 passes, and stored log-probabilities."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from offline_agent.training.data.rows import PairRow
from offline_agent.training.offline.misranked import misranked
from tests.helpers.training import exact, model, pairs, plain_logps


def by_hand(rows: list[PairRow]) -> list[bool]:
    double = exact(model()).eval()
    wrong = []
    for row in rows:
        sides = [(row.chosen_ids, row.chosen_mask), (row.rejected_ids, row.rejected_mask)]
        with torch.no_grad():
            chosen, rejected = (float(plain_logps(double, row.prompt_ids, *side).sum()) for side in sides)
        wrong.append(rejected >= chosen)
    return wrong


@pytest.mark.parametrize("tokens", [64, 4096])
@pytest.mark.parametrize("share", [True, False])
def test_they_are_those_of_plain_passes_over_the_policys_own_tokens(tokens: int, share: bool) -> None:
    """Alone catches sums over observations, or sides and rows that packs mix up."""
    rows = pairs(24, tail=True)
    expected = by_hand(rows)
    assert 4 < sum(expected) < 20
    policy = model().train()
    assert misranked(policy, rows, tokens=tokens, share=share) == expected
    assert policy.training


def test_stored_log_probabilities_are_used_and_a_tie_is_wrong() -> None:
    rows = pairs(3)
    stored = []
    for row, total in zip(rows, (-1.0, 1.0, 0.0), strict=True):
        chosen = tuple(0.0 for _ in row.chosen_ids)
        rejected = (total, *(0.0 for _ in row.rejected_ids[1:]))
        stored.append(replace(row, ref_chosen=chosen, ref_rejected=rejected))
    assert misranked(None, stored, tokens=64) == [False, True, True]
