"""Which rows make an update: every row once an epoch, the same for the same seed, histories together."""

from __future__ import annotations

from collections import Counter

import pytest

from offline_agent.training.data.updates import Unit, UpdateSchedule, fill, pair_units, trajectory_units
from offline_agent.training.prefix_sharing import log_probabilities as prefix_sharing
from tests.helpers.training import pairs, trajectories


def names(units: tuple[Unit, ...]) -> list[str]:
    return [unit.name for unit in units]


@pytest.mark.parametrize(("count", "size"), [(23, 4), (23, 23), (5, 8), (24, 8), (1, 1)])
def test_every_epoch_sees_each_row_once_in_even_updates(count: int, size: int) -> None:
    plan = UpdateSchedule(pair_units(pairs(count)), size=size, epochs=3, seed=5)
    assert len(plan) == 3 * plan.per_epoch
    for epoch in range(3):
        updates = [plan[epoch * plan.per_epoch + k] for k in range(plan.per_epoch)]
        assert Counter(name for u in updates for name in names(u.rows)) == Counter(f"pair-{i}" for i in range(count))
        sizes = [len(update.rows) for update in updates]
        assert max(sizes) <= size and max(sizes) - min(sizes) <= 1


def test_the_seed_and_the_epoch_decide_the_order() -> None:
    units = pair_units(pairs(24))

    def orders(seed: int) -> list[list[str]]:
        plan = UpdateSchedule(units, size=8, epochs=2, seed=seed)
        return [[name for k in range(3) for name in names(plan[3 * epoch + k].rows)] for epoch in (0, 1)]

    assert orders(1) == orders(1)
    assert orders(1)[0] != orders(1)[1]
    assert orders(1) != orders(2)
    again = UpdateSchedule(units, size=8, epochs=2, seed=1)
    assert names(again[4].rows) == names(UpdateSchedule(units, size=8, epochs=2, seed=1)[4].rows)


def test_rows_of_a_tree_go_together_and_several_trees_meet() -> None:
    plan = UpdateSchedule(pair_units(pairs(48, per_tree=4)), size=16, seed=3)
    for update in plan:
        trees = [unit.tree for unit in update.rows]
        assert len(set(trees)) >= 4
        assert sum(a == b for a, b in zip(trees, trees[1:], strict=False)) >= len(trees) // 2
    big = UpdateSchedule(pair_units(pairs(48, per_tree=48)), size=16, seed=3)
    assert sum(len(update.rows) for update in big) == 48


def test_epochs_and_updates_are_limits() -> None:
    units = pair_units(pairs(10))
    assert len(UpdateSchedule(units, size=2, epochs=0.5)) == 3
    assert len(UpdateSchedule(units, size=2, epochs=0.01)) == 1
    assert len(UpdateSchedule(units, size=2, epochs=2.2)) == 11
    assert len(UpdateSchedule(units, size=2, epochs=4, max_updates=7)) == 7
    with pytest.raises(IndexError):
        UpdateSchedule(units, size=2)[5]


def test_anchors_come_round_robin() -> None:
    anchors = trajectory_units(trajectories(5), anchor=True)
    plan = UpdateSchedule(pair_units(pairs(12)), anchors, size=2, anchor_size=2, seed=1, epochs=5)
    seen = Counter(name for update in plan for name in names(update.anchors))
    assert set(seen.values()) == {12}
    first = [name for k in range(5) for name in names(plan[k].anchors)]
    assert Counter(first[:5]) == Counter(first[5:]) and first[:5] != first[5:]
    few = UpdateSchedule(pair_units(pairs(12)), anchors, size=2, anchor_size=50)
    assert sorted(names(few[0].anchors)) == sorted(unit.name for unit in anchors)


@pytest.mark.parametrize("share", [True, False])
def test_packs_keep_to_the_budget(share: bool) -> None:
    units = [*pair_units(pairs(14, per_tree=7)), *trajectory_units(trajectories(6), anchor=True)]
    for budget in (1, 40, 90, 10_000):
        packs = fill(units, budget, share)
        assert Counter(unit.name for pack in packs for unit in pack) == Counter(unit.name for unit in units)
        for pack in packs:
            packed = prefix_sharing.pack([prefix_sharing.Sequence(*s) for unit in pack for s in unit.sequences])
            size = packed.tokens if share else packed.raw_tokens
            assert size <= budget or len(pack) == 1
    assert len(fill(units, 10_000, share)) == 1


def test_a_first_id_is_never_scored() -> None:
    row = trajectories(1)[0]
    sampled = row.__class__(row.name, row.task_id, row.origin, row.input_ids, (1,) * len(row.input_ids))
    unit = trajectory_units([sampled])[0]
    assert unit.sequences[0][1][0] == 0 and unit.scored == len(row.input_ids) - 1
