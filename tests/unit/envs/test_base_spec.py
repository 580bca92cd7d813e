"""Loading an environment: names, arguments, tasks, and messages that say how to mend what is wrong."""

import sys

import pytest

from offline_agent.envs.base import Environment, EnvSpec
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Task
from tests.helpers.hostile_environments import Honest

HONEST = "tests.helpers.hostile_environments:Honest"


def test_loading_by_path_and_by_name():
    spec = EnvSpec.load(HONEST)
    assert (spec.name, spec.version, spec.tools.names) == ("Honest", "1", ("pick",))
    assert spec.system_prompt.startswith("Pick three") and spec.deterministic_verifier and not spec.replay_only
    assert EnvSpec.load("shop").name == "shop"
    assert EnvSpec.load("tests.helpers.hostile_environments:Hangs", {"seconds": 1.0}).identity == {
        "name": "Hangs",
        "version": "1",
        "class": "tests.helpers.hostile_environments:Hangs",
        "args": {"seconds": 1.0},
    }


def test_loading_a_file(tmp_path):
    path = tmp_path / "an_env_of_mine.py"
    path.write_text("from tests.helpers.hostile_environments import Honest\nclass Mine(Honest):\n    pass\n")
    try:
        assert EnvSpec.load(f"{path}:Mine").name == "Mine"
    finally:
        sys.modules.pop("an_env_of_mine", None)


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("shpo", {}, "Did you mean 'shop'?"),
        ("nowhere.at_all:Env", {}, "nowhere"),
        ("tests.helpers.hostile_environments:Honset", {}, "Did you mean 'Honest'?"),
        ("tests.helpers.hostile_environments:itertools", {}, "no class"),
        (HONEST, {"colour": 1}, "env.colour: Honest takes no such argument"),
        ("tests.helpers.hostile_environments:Hangs", {"second": 1}, "Did you mean 'seconds'?"),
    ],
)
def test_what_cannot_be_loaded(name, args, told):
    with pytest.raises(ConfigError, match="env") as error:
        EnvSpec.load(name, args)
    assert told in str(error.value)


def test_every_fault_of_a_class_is_listed():
    class Bad:
        def tasks(self, split: str) -> list:
            """Oops.

            Args:
                split: The split.
            """

        def tool(self, a):
            """Oops."""

        def __init__(self, needed):
            pass

    with pytest.raises(ConfigError) as error:
        EnvSpec(Bad)
    told = "\n".join(error.value.faults)
    for part in ("no method reset", "tasks must be a @classmethod", "'tool'", "env.needed"):
        assert part in told


def test_irreversible_must_name_tools():
    class Bad(Honest):
        irreversible = ("pikc",)

    with pytest.raises(ConfigError, match="Did you mean 'pick'"):
        EnvSpec(Bad)


def test_tasks_have_ids_and_clean_arguments():
    tasks = list(EnvSpec(Honest).tasks("validation"))
    assert tasks[0] == Task("goal-11", "validation", {"goal": 11}) and len(tasks) == 7

    class Unnamed(Honest):
        @classmethod
        def tasks(cls, split):
            return [{"goal": 1}, {"goal": 2}]

    assert [t.task_id for t in EnvSpec(Unnamed).tasks("train")] == ["train-0", "train-1"]

    class Takes(Honest):
        def reset(self, goal: int, task_id: str) -> str:
            return task_id

    task = next(EnvSpec(Takes).tasks("train"))
    assert task.args == {"goal": 1, "task_id": "goal-1"}


def test_tasks_get_the_constructors_arguments_they_ask_for():
    class Sized(Honest):
        def __init__(self, size: int = 1, other: int = 2):
            pass

        @classmethod
        def tasks(cls, split, size=1):
            return ({"goal": n} for n in range(size))

    assert len(list(EnvSpec(Sized, {"size": 5, "other": 1}).tasks("train"))) == 5


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ([3], "task 0: must be a dict of reset's arguments, got int"),
        ([{"goal": 1}, {"goal": object()}], "task 1: its arguments cannot be written as JSON"),
        ([{"goal": float("nan")}], "cannot be written as JSON"),
        ([{1: 2}], "must be a dict"),
        ([{"task_id": "a", "goal": 1}, {"task_id": "a", "goal": 2}], "two tasks are called 'a'"),
        ([{"task_id": "a\ud800", "goal": 1}], "halves of characters"),
    ],
)
def test_unfit_tasks_are_named(listed, told):
    env = type("Env", (Honest,), {"tasks": classmethod(lambda cls, split: listed)})
    with pytest.raises(ConfigError) as error:
        list(EnvSpec(env).tasks("train"))
    assert told in str(error.value)


def test_unknown_splits_missing_and_raising_tasks():
    with pytest.raises(ConfigError, match="Did you mean 'validation'"):
        list(EnvSpec(Honest).tasks("valid"))
    with pytest.raises(ConfigError, match="tasks.file"):
        list(EnvSpec(type("Env", (), {"reset": lambda self: ""})).tasks("train"))
    env = type("Env", (Honest,), {"tasks": classmethod(lambda cls, split: iter([1 / 0]))})
    with pytest.raises(EnvironmentFault, match="ZeroDivisionError"):
        list(EnvSpec(env).tasks("train"))


def test_the_base_class_adds_no_tools():
    class Mine(Environment):
        pass

    spec = EnvSpec(Mine)
    assert spec.tools.names == () and spec.demonstrate is None
    with pytest.raises(EnvironmentFault, match="must define reset"):
        spec.open().reset(Task("t", "train", {}))
    assert "must define get_reward" in (spec.open().verdict().error or "")


@pytest.mark.parametrize("reply", [lambda self: None, lambda self, answer: None, lambda self, text, more: None])
def test_a_helper_that_is_called_as_the_scripted_user_is_refused(reply):
    with pytest.raises(ConfigError, match=r"got _reply\(self.*allowed: _reply\(self, text\).*call it otherwise"):
        EnvSpec(type("Game", (Honest,), {"_reply": reply}))
    EnvSpec(type("Game", (Honest,), {"_reply": lambda self, text, **more: None}))
