"""The longest episode is the class's own, else it follows from its expert."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any, ClassVar

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.checks.trial import episode_length
from offline_agent.envs.settings import DEFAULT_STEPS
from offline_agent.errors import ConfigError, OfflineAgentError
from tests.helpers.hostile_environments import Honest


class Long(Honest):
    """Ten picks of one, the last of which ends the episode."""

    picks: ClassVar[int] = 20

    def pick(self, n: int) -> Any:
        """Pick a number.

        Args:
            n: The number, 0 to 9.
        """
        self.picked.append(n)
        self.terminated = len(self.picked) == self.picks
        return f"{len(self.picked)} picked."

    def get_reward(self) -> float:
        return float(len(self.picked) == self.picks)


class Declared(Long):
    max_steps = 33


class Inexpert(Long):
    demonstrate = None  # type: ignore[assignment]


class Leaving(Long):
    """Exits in place of raising."""

    @classmethod
    def demonstrate(cls, task, messages, rng: random.Random, noise: float) -> dict[str, Any]:
        raise SystemExit(3)


class Moving(Long):
    """Changes the process that it runs in."""

    def __init__(self) -> None:
        super().__init__()
        os.chdir("/")


class Listless(Long):
    @classmethod
    def tasks(cls, split: str) -> Any:
        raise KeyError("no such table")


class Broken(Long):
    @classmethod
    def demonstrate(cls, task, messages, rng: random.Random, noise: float) -> dict[str, Any]:
        raise KeyError("no plan")


def test_a_class_that_names_its_longest_episode_is_believed() -> None:
    assert episode_length(EnvSpec(Declared)) == 33


def test_an_expert_that_needs_many_actions_raises_the_default() -> None:
    assert episode_length(EnvSpec(Long)) == 40


@pytest.mark.parametrize("cls", [Honest, Inexpert, Broken, Leaving])
def test_else_it_is_the_default(cls: type) -> None:
    assert episode_length(EnvSpec(cls)) == DEFAULT_STEPS


def test_an_error_in_the_list_of_tasks_is_passed_on() -> None:
    with pytest.raises(OfflineAgentError, match="no such table"):
        episode_length(EnvSpec(Listless))


def test_changes_of_the_process_are_undone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert episode_length(EnvSpec(Moving)) == 40
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize("wrong", [0, -1, "15", 1.5, True])
def test_a_wrong_max_steps_is_refused(wrong: Any) -> None:
    cls = type("Wrong", (Honest,), {"max_steps": wrong})
    with pytest.raises(ConfigError, match="its max_steps is .*allowed: None or a whole number from 1"):
        EnvSpec(cls)
