"""The tasks of each look."""

from __future__ import annotations

from offline_agent.evaluation.gate import rotated


def test_looks_share_no_task_until_all_were_used_and_then_are_dealt_anew() -> None:
    looks = [rotated(103, 25, look, seed=1) for look in range(8)]
    assert all(len(set(look)) == 25 and look == sorted(look) and max(look) < 103 for look in looks)
    for first in (0, 4):
        assert len(set().union(*looks[first : first + 4])) == 100
    assert looks[4:] != looks[:4] and looks[0] != list(range(25))


def test_a_look_depends_on_its_number_and_the_seed_alone() -> None:
    assert rotated(100, 10, 3, seed=1) == rotated(100, 10, 3, seed=1) != rotated(100, 10, 3, seed=2)


def test_where_there_are_no_others_all_are_looked_at_again() -> None:
    assert [rotated(7, 50, look, seed=0) for look in range(3)] == [list(range(7))] * 3
