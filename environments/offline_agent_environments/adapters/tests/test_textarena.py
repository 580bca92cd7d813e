"""TextArena's games as environments of this package."""

from __future__ import annotations

import random
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.errors import ConfigError
from offline_agent.records import Action, Task, ToolCall

pytest.importorskip("textarena")
HANOI = [f"[{one} {two}]" for one in "ABC" for two in "ABC" if one != two]


@pytest.mark.parametrize(
    ("name", "args"),
    [("2048-v0", {}), ("TowerOfHanoi-v0", {"moves": HANOI}), ("GuessTheNumber-v0", {}), ("Mastermind-v0", {})],
)
def test_it_passes_the_conformance_suite(name: str, args: dict[str, Any]) -> None:
    report = check_environment(EnvSpec.load(f"textarena:{name}", args), tasks=1)
    assert report.passed, report


def act(episode: Any, move: str) -> Any:
    return episode.step(Action(move, call=ToolCall("act", {"action": move})))


def test_chance_belongs_to_the_game() -> None:
    """2048 puts a random tile on the board after each move."""
    random.seed(7)
    before = random.getstate()
    episode = EnvSpec.load("textarena:2048-v0").open()
    episode.reset(Task("t", "train", {"seed": 3}))
    act(episode, "[up]")
    copy = episode.copy()
    assert random.getstate() == before
    random.seed(8)
    moves = ["[left]", "[down]", "[right]"]
    assert [act(copy, move).observation for move in moves] == [act(episode, move).observation for move in moves]


def test_a_won_game_earns_1_and_one_that_is_cut_its_share() -> None:
    episode = EnvSpec.load("textarena:TowerOfHanoi-v0", {"options": {"num_disks": 2, "max_turns": 3}}).open()
    task = Task("t", "train", {"seed": 0})
    episode.reset(task)
    assert episode.verdict().score == 0
    for move in ("[A B]", "[A C]", "[B C]"):
        last = act(episode, move)
    assert last.terminated and "Congratulations" in (last.observation or "") and episode.verdict().score == 1
    episode.reset(task)
    for move in ("[A B]", "[A C]", "[B A]", "[A B]"):
        last = act(episode, move)
    assert last.terminated and episode.verdict().score == 0.5


def test_named_moves_are_all_that_can_be_made() -> None:
    episode = EnvSpec.load("textarena:TowerOfHanoi-v0", {"moves": HANOI}).open()
    episode.reset(Task("t", "train", {"seed": 0}))
    assert act(episode, "[A D]").fault == "bad_arguments"
    assert act(episode, "[A B]").fault is None


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("TowerOfHano-v0", {}, "Did you mean 'TowerOfHanoi-v0'"),
        ("Poker-v0", {}, "no game for one player"),
        ("TowerOfHanoi-v0", {"moves": "[A B]"}, "env.moves: got '.A B.', allowed: a list of texts"),
        ("TowerOfHanoi-v0", {"options": {"disks": 2}}, "cannot be adapted: TypeError"),
    ],
)
def test_what_cannot_be_adapted_is_refused_with_the_reason(name: str, args: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        EnvSpec.load(f"textarena:{name}", args)
