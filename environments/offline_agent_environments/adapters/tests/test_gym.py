"""Gymnasium environments as environments of this package."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.errors import ConfigError
from offline_agent.records import Action, Task, ToolCall
from offline_agent_environments.adapters import gym

pytest.importorskip("gymnasium")
OWN = "gym:offline_agent_environments.adapters.tests.gym_envs:"


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("gym:FrozenLake-v1", {"options": {"is_slippery": False}}),
        ("gym:Blackjack-v1", {"low": -1, "reward": "last"}),
        ("gym:CartPole-v1", {"high": 475}),
        (f"{OWN}Counts-v0", {}),
        (f"{OWN}Says-v0", {}),
        (f"{OWN}Adds-v0", {}),
        (f"{OWN}Sums-v0", {}),
    ],
)
def test_it_passes_the_conformance_suite(name: str, args: dict[str, Any]) -> None:
    report = check_environment(EnvSpec.load(name, args), tasks=1)
    assert report.passed, report


@pytest.mark.parametrize(
    ("name", "args", "tools"),
    [
        ("gym:FrozenLake-v1", {}, ["move_left", "move_down", "move_right", "move_up"]),
        (
            "gym:FrozenLake-v1",
            {"actions": ["west", "south", "east", "take off"]},
            ["west", "south", "east", "take_off"],
        ),
        (f"{OWN}Counts-v0", {}, ["dont_add", "add_one", "add_two"]),
        (f"{OWN}Adds-v0", {}, ["act"]),
    ],
)
def test_actions_are_tools_with_their_names(name: str, args: dict[str, Any], tools: list[str]) -> None:
    assert list(EnvSpec.load(name, args).tools.names) == tools


def test_an_enumeration_of_actions_names_the_tools() -> None:
    pytest.importorskip("minigrid")
    spec = EnvSpec.load(
        "gym:minigrid:MiniGrid-Empty-5x5-v0", {"observe": "json:dumps", "options": {"render_mode": None}}
    )
    assert spec.tools.names[:3] == ("left", "right", "forward")


def called(episode: Any, *names: str) -> Any:
    return [episode.step(Action(name, call=ToolCall(name, {}))) for name in names]


def test_numbers_of_actions_need_not_begin_at_0_and_the_map_is_seen() -> None:
    episode = EnvSpec.load(f"{OWN}Counts-v0").open()
    start = int(episode.reset(Task("t", "train", {"seed": 0})))
    assert [step.observation for step in called(episode, "dont_add", "add_one")] == [str(start), str(start + 1)]
    lake = EnvSpec.load("gym:FrozenLake-v1").open()
    assert "FFFH" in lake.reset(Task("t", "train", {"seed": 0}))


def test_giving_up_is_no_better_than_going_on_where_steps_cost() -> None:
    spec = EnvSpec.load("gym:offline_agent_environments.adapters.tests.gym_envs:CostsMuch-v0", {"low": -10, "high": 0})
    episode = spec.open()
    episode.reset(Task("t", "train", {"seed": 1}))
    called(episode, "dont_add")
    assert episode.verdict().score == 0
    called(episode, "add_two", "add_two")
    assert episode.terminated and 0.5 < (episode.verdict().score or 0) < 1


def test_the_sum_of_rewards_is_placed_between_the_bounds() -> None:
    spec = EnvSpec.load("gym:CartPole-v1", {"high": 20})
    episode = spec.open()
    episode.reset(Task("t", "train", {"seed": 0}))
    name = spec.tools.names[0]
    called(episode, *[name] * 5)
    assert episode.verdict().score == 0.25


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("gym:", {}, "write what to adapt after the colon"),
        ("gym:FrozenLak-v1", {}, "Did you mean: `FrozenLake`"),
        ("gym:no_such_module:X-v0", {}, "there is no module 'no_such_module'"),
        ("gym:Pendulum-v1", {}, "has actions of Box"),
        ("gym:CartPole-v1", {}, "the reward 475, which is outside of 0 to 1"),
        ("gym:CliffWalking-v1", {}, "the reward -1, which is outside of 0 to 1"),
        ("gym:CartPole-v1", {"low": 2, "high": 1}, "the least, then a greater one"),
        ("gym:CartPole-v1", {"high": 475, "reward": "mean"}, "env.reward: got 'mean', allowed: sum, last"),
        ("gym:FrozenLake-v1", {"actions": ["a", "b"]}, "4 different names, one for each action"),
        ("gym:FrozenLake-v1", {"option": {}}, "env.option: GymEnvironment takes no such argument"),
        ("gym:FrozenLake-v1", {"options": {"map": 1}}, "gym:FrozenLake-v1 cannot be adapted"),
        ("gym:minigrid:MiniGrid-Empty-5x5-v0", {}, "env.observe=module:function"),
    ],
)
def test_what_cannot_be_adapted_is_refused_with_the_reason(name: str, args: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace("(", "\\(")):
        EnvSpec.load(name, args)


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ConfigError, match=r"module 'gymnasium'.*offline-agent-environments\[gym\].*env.python=PATH"):
        EnvSpec.load("gym:FrozenLake-v1")


def test_colours_that_tell_things_apart_are_in_the_text() -> None:
    """Alone catches a drawing of Taxi in which passenger and destination look alike, or a taxi above one of them."""
    place = gym.uncoloured("|\x1b[35mR\x1b[0m: |\x1b[43m\x1b[34;1mB\x1b[0m\x1b[0m|")
    assert place == "|[magenta R]: |[yellow [blue B]]|" and gym.uncoloured("S\x1b[41mF\x1b[0m") == "S[F]"
