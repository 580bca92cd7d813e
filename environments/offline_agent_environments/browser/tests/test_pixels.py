"""Levels by pixels: what is shown, the expert's clicks, what is refused, and a search whose replays show the same."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from offline_agent import pictures
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import ScriptedPlayer
from offline_agent_environments.browser import pixels
from offline_agent_environments.browser.tests.chromium import act
from tests.helpers.bandit import call

NAME = "offline_agent_environments.browser.pixels:Pixels"


def test_the_expert_wins_every_level_of_the_default_by_clicks_at_points() -> None:
    spec = EnvSpec.load(NAME)
    tasks = list(itertools.islice(spec.tasks("test"), len(pixels.LEVELS)))
    played = [ScriptedPlayer(spec, 12).expert(task) for task in tasks]
    assert [task.args["level"] for task in tasks if task.args["level"]] == list(pixels.LEVELS)
    assert all(one.verdict.success for one in played)
    names = {step.action.call.name for one in played for step in one.steps}
    assert names == {"click_at", "type_text"}


def test_an_observation_is_the_level_s_picture_and_other_input_is_refused() -> None:
    spec = EnvSpec.load(NAME, {"level": "enter-text"})
    episode = spec.open()
    first = episode.reset(next(spec.tasks("train")))
    (hash,) = pictures.named(first)
    data = pictures.data(hash)
    assert (int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")) == (pixels.WIDTH, pixels.HEIGHT)
    refused = [act("click_at", x=160, y=0), act("click_at", x=0, y=-1), act("press", key="F1"), act("goto")]
    for action, told in zip(refused, ("0 to 159", "0 to 209", "allowed: Enter", "no tool"), strict=True):
        assert told in (episode.step(action).observation or "")
    typed = episode.step(act("press", key="Tab")).observation
    again = episode.step(act("type_text", text="ab")).observation
    assert len({first.partition("\n")[2], typed, again}) > 1
    episode.close()


def test_pixels_are_searched_by_replay(tmp_path: Path) -> None:
    keys = ["policy=noisy", "policy.noise=0.5", "search.simulations=6", "search.max_steps=4", "tasks.n=2"]
    call("build_prefs", f"env={NAME}", "env.level=click-dialog,focus-text", *keys, f"run_dir={tmp_path}")
    found: Any = json.loads((tmp_path / "summary.json").read_text())
    assert found["success"]["best_of_search"] == 1.0 and found["this_session"]["replay_mismatches"] == 0
    assert found["this_session"]["calls_replayed"] > 0 and list((tmp_path / "images").iterdir())
