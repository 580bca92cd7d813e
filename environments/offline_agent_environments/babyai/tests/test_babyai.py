"""BabyAI: levels of rising difficulty, the bot's failures, and states that are copied."""

import importlib.util
import itertools

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import ScriptedPlayer
from offline_agent.envs.settings import DemonstrationsSection
from offline_agent.errors import ConfigError
from offline_agent.records import Action, ToolCall
from offline_agent.rollouts.demonstrations import demonstrate

pytestmark = pytest.mark.skipif(importlib.util.find_spec("minigrid") is None, reason="pip install minigrid")

RISING = "GoToLocal,PickupLoc,UnlockLocal"


def _spec(level):
    return EnvSpec.load("babyai", {"level": level})


def test_levels_come_in_turn_and_the_bot_wins_them():
    spec = _spec(RISING)
    tasks = list(itertools.islice(spec.tasks("train"), 6))
    assert [task.args["level"] for task in tasks] == [f"BabyAI-{level}-v0" for level in RISING.split(",")] * 2
    played = demonstrate(spec, tasks, None, DemonstrationsSection(max_steps=24))
    assert (played.successes, played.left_out) == (6, [])
    first, _, third = played.trajectories[:3]
    assert len(first.steps) < len(third.steps)


def test_what_the_bot_fails_is_left_out_and_counted():
    """Its plan for this seed turns in a circle."""
    spec = _spec("SynthS5R2")
    tasks = [task for task in itertools.islice(spec.tasks("train"), 4) if task.args["seed"] >= 2]
    played = demonstrate(spec, tasks, None, DemonstrationsSection(max_steps=60))
    assert (played.attempts, len(played.trajectories)) == (2, 1)
    assert played.left_out[0][0] == "BabyAI-SynthS5R2-v0-3/0"


def test_the_package_prints_nothing(capsys):
    spec = _spec("SynthS5R2")
    for task in itertools.islice(spec.tasks("train"), 3):
        ScriptedPlayer(spec, 10).expert(task)
    assert capsys.readouterr().out == ""


def test_a_copy_goes_its_own_way():
    spec = _spec("GoToLocal")
    task = next(spec.tasks("train"))
    episode = spec.open()
    episode.reset(task)
    before = episode.fingerprint()
    twin = episode.copy()
    twin.step(Action("", call=ToolCall("turn", {"direction": "left"})))
    assert episode.fingerprint() == before != twin.fingerprint()


def test_a_level_that_does_not_exist_is_refused_with_a_near_name():
    with pytest.raises(ConfigError, match="Did you mean '?GoToLocal"):
        next(iter(_spec("GoToLocl").tasks("train")))
