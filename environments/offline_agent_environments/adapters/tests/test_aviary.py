"""Environments of Aviary: tools of `reset`, tasks of datasets, of texts and of seeds, rewards of steps."""

from __future__ import annotations

import random
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Action, Task, ToolCall

pytest.importorskip("aviary.core", reason="aviary is not installed: pip install 'offline-agent-environments[aviary]'")

HERE = "aviary:offline_agent_environments.adapters.tests.aviary_envs"
DATA = {"splits": {"test": "exam"}}


def _guess(number: int) -> Action:
    return Action("", call=ToolCall("guess", {"number": number}))


def _tasks(spec: EnvSpec, split: str) -> list[dict[str, Any]]:
    return [dict(task.args) for task in spec.tasks(split)]


@pytest.mark.parametrize(
    ("name", "args", "tasks"),
    [
        pytest.param("aviary:aviary.core:DummyEnv", {}, 3, marks=pytest.mark.slow),
        (f"{HERE}:Numbers", {**DATA, "demonstrate": "offline_agent_environments.adapters.tests.aviary_envs:expert"}, 1),
        (f"{HERE}:Endless", {"tasks": 5}, 1),
    ],
)
def test_it_passes_the_conformance_suite(name: str, args: dict[str, Any], tasks: int) -> None:
    report = check_environment(EnvSpec.load(name, args), tasks=tasks)
    assert report.passed, str(report)


def test_a_dataset_is_made_once_for_each_split_under_the_names_that_are_given() -> None:
    spec = EnvSpec.load(f"{HERE}:Numbers", DATA)
    assert [len(_tasks(spec, split)) for split in ("train", "validation", "test")] == [4, 1, 2]
    assert _tasks(spec, "test") == [{"data": "exam", "index": 0}, {"data": "exam", "index": 1}]
    episode = spec.open()
    episode.reset(Task("t", "test", {"data": "exam", "index": 1}))
    step = episode.step(_guess(5))
    assert step.terminated and step.observation == "right" and episode.verdict().score == 1.0


def test_a_dataset_without_splits_is_divided_and_texts_are_too() -> None:
    one = EnvSpec.load(f"{HERE}:Numbers", {"options": {"split": "all"}})
    found = [task["index"] for split in ("train", "validation", "test") for task in _tasks(one, split)]
    assert sorted(found) == list(range(20)) and _tasks(one, "test")
    texts = EnvSpec.load(f"{HERE}:Guessing", {"tasks": [str(n) for n in range(1, 30)]})
    (first, *_) = _tasks(texts, "train")
    episode = texts.open()
    episode.reset(Task("t", "train", first))
    episode.step(_guess(int(first["task"])))
    assert episode.verdict().score == 1.0


def test_what_an_environment_draws_belongs_to_its_state() -> None:
    spec = EnvSpec.load(f"{HERE}:Guessing")
    episode = spec.open()
    episode.reset(Task("t", "train", {"seed": 7}))
    twin = episode.copy()
    random.seed(0)
    outside = random.getstate()
    hint = Action("", call=ToolCall("hint", {}))
    heard = [str(episode.step(hint).observation) for _ in range(5)]
    assert heard == [str(twin.step(hint).observation) for _ in range(5)] and len(set(heard)) > 1
    assert random.getstate() == outside


def test_an_answer_is_sent_and_the_last_of_three_empty_ones_ends_the_episode() -> None:
    episode = EnvSpec.load(f"{HERE}:Guessing").open()
    episode.reset(Task("t", "train", {"seed": 0}))
    assert episode.step(Action("Three?")).observation == "Guess."
    assert [episode.step(Action("")).terminated for _ in range(3)] == [False, False, True]
    assert episode.verdict().score == 0.0


def test_a_dataset_that_cannot_be_made_is_not_taken_for_one_without_a_length() -> None:
    spec = EnvSpec.load(f"{HERE}:Broken")
    with pytest.raises(EnvironmentFault, match="the file of tasks has another form"):
        list(spec.tasks("validation"))


def test_environments_are_closed_when_they_are_no_longer_played() -> None:
    spec = EnvSpec.load(f"{HERE}:Counted")
    cls = spec.cls._source._cls  # type: ignore[attr-defined]
    assert cls.open == 0
    episode = spec.open()
    episode.reset(Task("t", "train", {"seed": 1}))
    episode.reset(Task("u", "train", {"seed": 2}))
    assert cls.open == 1
    episode.close()
    assert cls.open == 0


def test_a_task_with_a_tool_that_the_first_one_has_not_is_a_fault() -> None:
    spec = EnvSpec.load(f"{HERE}:Uneven")
    with pytest.raises(EnvironmentFault, match="this task has the tools pass_on, which the first task has not"):
        spec.open().reset(Task("t", "train", {"data": "train", "index": 1}))


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("aviary:no_such_module:Env", {}, "there is no module 'no_such_module'"),
        (f"{HERE}:Gessing", {}, "Did you mean 'Guessing'"),
        (f"{HERE}:expert", {}, "allowed: a class of aviary's Environment or TaskDataset"),
        (f"{HERE}:Guessing", {"options": {"gaol": 2}}, "env.options: got 'gaol', allowed: goal, most, extra"),
        (f"{HERE}:Guessing", {"splits": {"train": "x"}}, "env.splits: got .*allowed: names for train"),
        (f"{HERE}:Guessing", {"tasks": 0}, "env.tasks: got 0, allowed: a number of seeds"),
        (f"{HERE}:Guessing", {"tasks": ["3"], "options": {"most": 9}}, "env.options: got .* beside texts"),
        (f"{HERE}:Numbers", {"tasks": 5}, "env.tasks: got 5, allowed: nothing.*has tasks of its own"),
    ],
)
def test_bad_arguments_are_refused(name: str, args: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        EnvSpec.load(name, args)
