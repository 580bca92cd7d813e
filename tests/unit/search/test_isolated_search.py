"""Searching isolated environments: the trees of the same environments in process, whatever they do."""

from __future__ import annotations

import time
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.search.settings import SearchSettings
from tests.helpers.search import Guess, Paths, search, tasks
from tests.unit.search.test_faults import Breaks

SETTINGS = SearchSettings(simulations=16)


class Sleeps(Paths):
    """Sleeps behind one door."""

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which door.
        """
        if number == 1 and not self.path:
            time.sleep(3600)
        return super().door(number)


def trees(cls: type, isolated: bool, **options: Any) -> dict[str, str]:
    spec = EnvSpec(cls, isolated=isolated, most_open=options.pop("most_open", 256))
    spec.open().close()  # starting the process that all are forked from is under no limit
    return search(spec, Guess(), SETTINGS, tasks(spec, 2), **options).trees


@pytest.mark.parametrize("cls", [Paths, Breaks])
def test_isolated_environments_give_the_same_trees(cls: type) -> None:
    expected = trees(cls, False)
    assert trees(cls, True) == expected
    assert trees(cls, True, workers=3) == expected
    assert trees(cls, True, most_open=1) == expected  # states are restored by replay where too many live


def test_a_tool_that_hangs_is_the_same_branch_lost_and_its_process_ends() -> None:
    expected = trees(Sleeps, False, workers=2, time_limit=1.5)
    assert "no answer within 1.5 s" in "".join(expected.values())
    assert trees(Sleeps, True, workers=2, time_limit=1.5) == expected
