"""Demonstrations of any environment's expert."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.settings import DemonstrationsSection
from offline_agent.errors import EnvironmentFault
from offline_agent.preferences.dataset.export import trajectory_row
from offline_agent.records import Message, Task
from offline_agent.rollouts.demonstrations import Demonstrated, demonstrate, texts
from tests.helpers import rows as rows_kit
from tests.helpers.preferences import Vault


class Guided(Vault):
    """A vault with an expert: with noise it looks first, and who is reckless presses anything."""

    closed = 0

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        if task["wanted"] == "CA":
            raise EnvironmentFault("the manual for CA is lost")
        made = [call["function"]["name"] for m in messages for call in m.get("tool_calls") or ()]
        pressed = made.count("press")
        if noise and "look" not in made:
            return _call("look", {})
        if task["wanted"] == "BC" and noise:
            return {"role": "assistant", "content": "I give up."}
        if pressed < len(task["wanted"]):
            return _call("press", {"button": task["wanted"][pressed] if noise < 1 else rng.choice("ABC")})
        return _call("leave", {})

    def __enter__(self) -> Guided:
        return self

    def __exit__(self, *_: object) -> None:
        Guided.closed += 1


def _call(name: str, arguments: dict[str, Any]) -> Message:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": f"I {name}.", "tool_calls": [call]}


SPEC = EnvSpec(Guided)
TASKS = list(SPEC.tasks("train"))


def shown(**more: Any) -> Demonstrated:
    tasks, own = more.pop("tasks", TASKS), {name: more.pop(name) for name in ("seed", "tick") if name in more}
    return demonstrate(SPEC, tasks, rows_kit.renderer(), DemonstrationsSection(**{"max_steps": 8, **more}), **own)


def acted(done: Demonstrated) -> list[list[str]]:
    return [[step.key for step in trajectory.steps] for trajectory in done.trajectories]


def test_each_task_is_done_and_what_breaks_is_said() -> None:
    before, done = Guided.closed, shown()
    assert [t.task.args["wanted"] for t in done.trajectories] == ["AB", "BC"]
    assert (done.attempts, done.successes) == (3, 2)
    assert done.left_out == [(f"{TASKS[2].task_id}/0", done.left_out[0][1])] and "CA is lost" in done.left_out[0][1]
    for trajectory in done.trajectories:
        assert trajectory.origin == "demonstration" and trajectory.terminated and not trajectory.truncated
        assert trajectory.verdict is not None and trajectory.verdict.success and len(trajectory.steps) == 3
    assert Guided.closed == before + 3, "every episode is closed, a broken one too"


def test_the_turns_are_written_as_the_template_writes_them() -> None:
    trajectory = shown().trajectories[0]
    renderer = rows_kit.renderer()
    row = trajectory_row(trajectory, renderer)
    said = renderer.decode([t for t, on in zip(row["input_ids"], row["action_mask"], strict=True) if on])
    assert said.startswith('I press.\n<tool_call>\n{"name": "press", "arguments": {"button": "A"}}\n</tool_call>')
    assert said.count("<|im_end|>") == 3
    assert demonstrate(SPEC, TASKS[:1], None).trajectories[0].steps[0].action.call == trajectory.steps[0].action.call


def test_the_same_seed_shows_the_same_whatever_else_is_asked_for() -> None:
    reckless = {"noise": (1.0,), "only_successes": False, "per_task": 4}
    one, two, other = shown(**reckless), shown(**reckless), shown(**reckless, seed=1)
    assert acted(one) == acted(two) != acted(other)
    first = [keys for keys, t in zip(acted(one), one.trajectories, strict=True) if t.task == TASKS[1]]
    alone = shown(**{**reckless, "per_task": 2}, tasks=[TASKS[1]])
    assert acted(alone) == first[:2], "an attempt depends on seed, task and number alone"
    twin = Task("twin", "train", TASKS[0].args)
    both = [acted(shown(**reckless, tasks=[task])) for task in (TASKS[0], twin)]
    assert both[0] != both[1], "each task has its own chance"


def test_noises_are_drawn_evenly() -> None:
    done = shown(noise=(0.0, 0.5), per_task=40, tasks=[TASKS[0]])
    careful = sum(len(keys) == 3 for keys in acted(done))
    assert {len(keys) for keys in acted(done)} == {3, 4} and 8 <= careful <= 32


def test_failures_are_kept_on_request_and_marked() -> None:
    done = shown(noise=(0.5,), tasks=[TASKS[1]])
    assert done.trajectories == [] and done.left_out[0][1] == "it failed (score 0)"
    (given_up,) = shown(noise=(0.5,), tasks=[TASKS[1]], only_successes=False).trajectories
    assert given_up.terminated and given_up.steps[-1].action.call is None and given_up.steps[-1].observation is None
    short = shown(max_steps=2, tasks=[TASKS[0]])
    assert short.left_out[0][1] == "it was not done after 2 actions (score 1)", "the goal was reached, nobody left"
    (cut,) = shown(max_steps=1, tasks=[TASKS[0]], only_successes=False).trajectories
    assert cut.truncated and cut.cut_by == "max_steps" and not cut.terminated


def test_a_share_of_noise_is_at_most_one() -> None:
    with pytest.raises(ValidationError, match="noise"):
        shown(noise=(1.5,))


def test_ticks_count_tasks() -> None:
    seen: list[int] = []
    shown(tick=seen.append, per_task=2)
    assert seen == [1, 2, 3]


def test_a_tokenizer_learns_from_everything_a_prompt_holds() -> None:
    said = "\n".join(texts(shown().trajectories[:1]))
    for words in ("Open the vault.", " press(button)", " leave()", "Press buttona", "A is down", "I press.", '"B"'):
        assert words in said, words


def test_any_environment_with_an_expert() -> None:
    for name in ("shop",):
        spec = EnvSpec.load(name)
        tasks: list[Task] = [task for task, _ in zip(spec.tasks("train"), range(3), strict=False)]
        done = demonstrate(spec, tasks, rows_kit.renderer())
        assert done.successes == 3
        assert all(trajectory_row(t, rows_kit.renderer())["success"] for t in done.trajectories)
