"""The Gumbel root: when it begins, and that its visits do not depend on how many simulations are in flight."""

from __future__ import annotations

from functools import cache

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.search.selection import GumbelRoot
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import Node
from tests.helpers.search import Guess, Paths, Run, search, tasks

SPEC = EnvSpec(Paths)
POLICY = Guess(skill=0.2, doors=9, thoughts=False)


@cache
def searched(leaves: int, m: int = 6, workers: int = 0) -> Run:
    settings = SearchSettings(simulations=64, gumbel_root=True, gumbel_m=m, leaves_in_flight=leaves)
    return search(SPEC, POLICY, settings, tasks(SPEC, 12), workers=workers)


def shares(run: Run) -> list[float]:
    """Return the mean share of visits of the most visited root edge, of the second most, and so on."""
    trees = [one.tree for one in run.searches.values() if one.tree is not None]
    ranked = [sorted((edge.visits / tree.root.visits for edge in tree.root.edges), reverse=True) for tree in trees]
    return [sum(row[i] if i < len(row) else 0.0 for row in ranked) / len(ranked) for i in range(6)]


@pytest.mark.parametrize("leaves", [2, 4, 8])
def test_root_visits_are_spread_alike_for_any_number_of_leaves_in_flight(leaves: int) -> None:
    alone, crowd = shares(searched(1)), shares(searched(leaves))
    assert alone[0] < 0.6
    assert max(abs(one - other) for one, other in zip(alone, crowd, strict=True)) < 0.05


@pytest.mark.parametrize("leaves", [1, 4, 8])
@pytest.mark.parametrize("m", [2, 5, 8])
def test_the_candidates_are_chosen_once_the_root_has_its_proposals(
    leaves: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[str, tuple[int, int, int, int]] = {}
    begin = GumbelRoot._begin

    def noted(self: GumbelRoot, node: Node) -> bool:
        facts = len(node.edges), node.duplicates, node.pending, node.visits
        known.setdefault(node.context.task.task_id, facts)
        return begin(self, node)

    monkeypatch.setattr(GumbelRoot, "_begin", noted)
    run = searched.__wrapped__(leaves, m)
    assert len(known) == len(run.searches) == 12
    for edges, duplicates, in_flight, visits in known.values():
        assert edges >= m or duplicates >= SearchSettings().saturation
        assert in_flight == 0 and visits >= 4


def test_a_gumbel_root_gives_the_same_trees_for_any_number_of_workers() -> None:
    alone, crowd = searched(4), searched(4, workers=4)
    assert crowd.trees == alone.trees and crowd.logs == alone.logs
