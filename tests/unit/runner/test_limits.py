"""Limits that a configuration leaves open are those of the environment and the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.config.iterate import IterateConfig
from offline_agent.config.loading import load
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.config.training import TrainDpoConfig, TrainSftConfig
from offline_agent.launch.loop_stages import LoopStages
from offline_agent.runner.components import completed

LONG = "env=tests.unit.envs.test_episode_length:Long"


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (BuildPrefsConfig, "search.max_steps"),
        (EvaluateConfig, "max_steps"),
        (IterateConfig, "search.max_steps"),
        (RefineGrpoConfig, "rollouts.max_steps"),
        (TrainSftConfig, "demonstrations.max_steps"),
    ],
)
def test_every_command_that_plays_takes_the_environments_longest_episode(kind: Any, key: str) -> None:
    assert _get(completed(load(kind, overrides=[LONG])), key) == 40
    assert _get(completed(load(kind, overrides=[LONG, f"{key}=7"])), key) == 7


def test_commands_that_do_not_play_are_left_as_they_are() -> None:
    for kind, given in ((TrainDpoConfig, ["data.runs=[x]"]), (TrainSftConfig, ["data.runs=[x]"])):
        config: Any = load(kind, overrides=given)
        assert completed(config) == config


def test_a_missing_environment_is_left_to_the_command_itself() -> None:
    config = completed(load(BuildPrefsConfig, overrides=["env=nobody.knows:It"]))
    assert config.search.max_steps == 15


def test_the_loop_has_one_limit_for_all_of_its_stages() -> None:
    config = completed(load(IterateConfig, overrides=[LONG]))
    stages = LoopStages(config, Path("/"), "")
    start = stages.start()
    search: Any = stages.build_prefs(0, start, Path("/t")).config
    judged: Any = stages.evaluate(0, "evaluate", start, Path("/t")).config
    assert search.search.max_steps == judged.max_steps == 40
    assert search.policy.max_tokens == judged.policy.max_tokens == 64


def test_the_online_stage_takes_the_models_longest_action() -> None:
    assert completed(load(RefineGrpoConfig, overrides=["env=shop"])).rollouts.max_tokens == 64
    assert completed(load(RefineGrpoConfig, overrides=["rollouts.max_tokens=9"])).rollouts.max_tokens == 9


def _get(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return config
